"""What a routing decision is made from, and what it is: frozen, no Ray in sight."""

from dataclasses import dataclass

from kvstore.kv_messages import FetchCosts


@dataclass(frozen=True)
class Load:
    """What is known of one verifier's load.

    Attributes:
        replica_id: Serve's id of the replica.
        in_flight: Requests it said it had when it last reported; 0 if it never did.
        sent_since: Requests this router sent to it since that report.
        last_pick: Count of picks of this router when it was last picked; 0 if never.
        queued_tokens: Prompt tokens it said it still had to compute.
        sent_tokens: Prompt tokens to compute of the requests sent since.
        waiting: Requests without a first token, it said.
    """

    replica_id: str
    in_flight: int
    sent_since: int
    last_pick: int
    queued_tokens: int = 0
    sent_tokens: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Ranking:
    """Verifiers from the best to the worst, and why the first is first."""

    replica_ids: tuple[str, ...]
    reason: str


@dataclass
class RoutingNote:
    """Goes with a request to the policy, which writes on it why it decided as it did.

    Attributes:
        is_wanted: Whether anybody will read it.
        text: One line of ASCII without quotes.
        part: Part of the request's body that is there, above 0, at most 1.
    """

    is_wanted: bool = False
    text: str = ""
    part: float = 1.0


@dataclass(frozen=True)
class Prefill:
    """What prefilling costs on one verifier.

    Attributes:
        base_s: Of a prefill apart from its tokens, seconds.
        s_per_token: Of one token more.
    """

    base_s: float
    s_per_token: float


@dataclass(frozen=True)
class Candidate:
    """One verifier, as seen by one request.

    Attributes:
        load: What is known of its load.
        device_blocks: Leading blocks of the prompt that it holds ready.
        colder_blocks: Blocks after these that it can fetch,
        storage_blocks: the last of them not from its node's memory.
        coming_blocks: Leading blocks that it will hold once requests sent there are prefilled.
        prefill: What prefilling costs there; None where it is not known yet.
        fetch: What fetching costs there; None where it is not known yet.
        affinity: 0-1 by consistent hashing of the verifier and the prompt's beginning.
    """

    load: Load
    device_blocks: int = 0
    colder_blocks: int = 0
    storage_blocks: int = 0
    coming_blocks: int = 0
    prefill: Prefill | None = None
    fetch: FetchCosts | None = None
    affinity: float = 0.0
