"""What a routing decision is made from, and what it is: frozen, no Ray in sight."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What is known of one verifier's load.

    Attributes:
        replica_id: Serve's id of the replica.
        in_flight: Requests it said it had when it last reported; 0 if it never did.
        sent_since: Requests this router sent to it since that report.
        last_pick: Count of picks of this router when it was last picked; 0 if never.
    """

    replica_id: str
    in_flight: int
    sent_since: int
    last_pick: int


@dataclass(frozen=True)
class Ranking:
    """Verifiers from the best to the worst, and why the first is first."""

    replica_ids: tuple[str, ...]
    reason: str
