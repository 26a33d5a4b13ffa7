"""What the rank that proposes tells its replica about drafting, once a second.

It crosses a process boundary as JSON types; counts run since the engine's start.
"""

import msgspec

from kvstore.verifier_report import GovernorReport, SourceCounts


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and states of one verifier's drafting.

    Attributes:
        sources: Draft tokens verified and accepted, by source and position.
        workers: State of each known draft worker, in words; `closed` is good.
        asks: Messages sent to draft workers.
        answers: Answers that came in time, and late ones.
        late_answers: Of these, the late ones.
        deadline_misses: Waits that ended without what was waited for.
        violations: Answers that could not be believed, by what was wrong with them.
        waits: Steps that waited for drafts.
        wait_s: For how long, in all.
        steps: Engine steps.
        step_s: Where their time went, in all: `prepare`, `verify`, `draft`, `commit`.
        sessions: Sequences that are being drafted now.
        failures: Steps without drafts because the proposer failed.
        governor: Draft lengths and what decides them.
    """

    sources: dict[str, SourceCounts] = {}
    workers: dict[str, str] = {}
    asks: int = 0
    answers: int = 0
    late_answers: int = 0
    deadline_misses: int = 0
    violations: dict[str, int] = {}
    waits: int = 0
    wait_s: float = 0.0
    steps: int = 0
    step_s: dict[str, float] = {}
    sessions: int = 0
    failures: int = 0
    governor: GovernorReport | None = None
