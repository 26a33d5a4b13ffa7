"""What is told about shared KV blocks: by a tier, a node's LMCache server and a verifier.

Structs only; counts run since the start of who reports.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from kvstore.report_types import PROTOCOL, Count, Counts, Seconds, Text, Word


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tier behind a node's memory.

    Attributes:
        kind: As in the config.
        is_healthy: False while it is left alone because it failed.
        counts: Objects by what became of them; words of `TierAccount`.
        bytes_loaded: That came from it.
        bytes_stored: That went to it.
        lookup_s: Usual time of a look-up.
        bytes_per_s: Usual rate of a load; 0 where there was none.
    """

    kind: Word
    is_healthy: bool = True
    counts: Counts = {}
    bytes_loaded: Count = 0
    bytes_stored: Count = 0
    lookup_s: Seconds = 0.0
    bytes_per_s: Annotated[float, Meta(ge=0)] = 0.0


class CostLine(msgspec.Struct, frozen=True):
    """Seconds by tokens: `base_s + s_per_token * tokens`."""

    base_s: Seconds = 0.0
    s_per_token: Seconds = 0.0


class SharingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one verifier does with shared blocks.

    Attributes:
        is_healthy: Whether its node's LMCache server answers.
        decided: Requests by whether and why they were looked up; words of `fetch_gate.Reason`.
        outcomes: Look-ups by what came of them: `fetched`, `missed`, `computed` (found, but
            slower than computing), `gave_up` (waiting would not have paid), `failed` (found, but
            it did not arrive, and was computed).
        tokens: That were fetched.
        load_s: Time those took from memory into the engine.
        compute: What computing a prompt costs; None where it is not measured, as below.
        load: What loading from the node's memory costs.
        tiers: From each tier behind into that memory.
    """

    is_healthy: bool = True
    decided: Counts = {}
    outcomes: Counts = {}
    tokens: Count = 0
    load_s: Seconds = 0.0
    compute: CostLine | None = None
    load: CostLine | None = None
    tiers: Annotated[dict[Word, CostLine], Meta(max_length=8)] = {}


class KvServerReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="kv"):
    """What is said of one node's LMCache server. Counts run since the server's start.

    Attributes:
        pid: Of the server; 0 while there is none.
        is_healthy: Whether it answers.
        starts: How often it was started; more than one means that it was lost.
        tiers: Behind its memory.
    """

    worker_id: Text
    node_ip: Text
    pid: Count
    is_healthy: bool
    starts: Count
    tiers: Annotated[list[TierReport], Meta(max_length=8)]
    started_at_s: Seconds
    reported_at_s: Seconds
    protocol: int = PROTOCOL
