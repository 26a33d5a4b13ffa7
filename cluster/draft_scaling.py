"""How many draft workers are needed, and whether any: by what became of their drafts.

    unknown --requests--> trial --accepted tokens are worth it--> paying
                            ^                                       |
                            |                                 not any more
                            +--- pause, twice as long each time ---- not paying

A worker's drafts pay when the tokens accepted of them are a part of the answers that is worth
having; the governor drafts nothing that it does not expect to save time, so that little is
accepted where little pays. Where they don't, workers go down to the fewest, and after a pause
one is started to see whether that is still so. How many are needed while they pay goes by how
busy they are, by drafts that came too late and by contexts that had no room, and follows the
verifiers that are planned.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from cluster.scaling import MARGIN, Wanted

WORTH: Final = 0.03
"""Part of the answers' tokens that has to come from draft workers."""
LEAST_TOKENS: Final = 300
"""Of answers, before anything is concluded."""
BUSY: Final = 0.6
"""Part of a worker's time that may be planned with; above, answers come late."""
MISSED: Final = 0.05
"""Part of the asks whose drafts may be waited for in vain."""
FIRST_PAUSE_S: Final = 300.0
LONGEST_PAUSE_S: Final = 3600.0
MISSES_REMEMBERED: Final = 10.0
"""Times `keep_s` that a number of workers which was too small is not gone back to."""
SESSIONS_ALIKE: Final = 0.8


@dataclass(frozen=True)
class DraftUse:
    """What became of drafts in the latest window.

    Attributes:
        allowed: Whether anybody may draft: by mode and pressure of the governors.
        output_tokens: Of answers.
        accepted_tokens: Of those, drafted by workers.
        asks: Of workers, counted by session.
        misses: Drafts that were waited for in vain.
        evictions: Contexts that a worker had no room for.
        workers: That report.
        busy: Their busy ratios added up.
        sessions: Whose contexts they hold.
    """

    allowed: bool
    output_tokens: float = 0.0
    accepted_tokens: float = 0.0
    asks: float = 0.0
    misses: float = 0.0
    evictions: float = 0.0
    workers: int = 0
    busy: float = 0.0
    sessions: float = 0.0

    @property
    def share(self) -> float:
        """Part of the answers that came from workers' drafts, 0-1."""
        return self.accepted_tokens / self.output_tokens if self.output_tokens else 0.0


@dataclass(frozen=True)
class DraftMemory:
    """Between two decisions.

    Attributes:
        trial_since_s: When the running trial began; None where none runs.
        paying: Whether workers' drafts were worth it when that was last known.
        pause_s: How long the next pause is, or this one.
        paused_until_s: When the next trial may begin.
        missed_with: Workers with which drafts came too late,
        missed_at_s: when that was,
        missed_sessions: and the sessions then.
    """

    trial_since_s: float | None = None
    paying: bool = False
    pause_s: float = FIRST_PAUSE_S
    paused_until_s: float = 0.0
    missed_with: int = 0
    missed_at_s: float = -math.inf
    missed_sessions: float = 0.0


def wanted_workers(
    use: DraftUse,
    memory: DraftMemory,
    *,
    growth: float,
    settled: bool,
    trial_s: float,
    keep_s: float,
    now_s: float,
) -> tuple[Wanted, DraftMemory]:
    """Draft workers that are needed now.

    Args:
        use: In the latest window.
        memory: Of the last decision.
        growth: Verifiers that are planned by those that are there.
        settled: Whether all workers that were started are there.
        trial_s: How long a trial runs at least, from its first worker's report.
        keep_s: How long fewer must have been enough, by the config.
        now_s: Now, seconds.
    """
    if not use.allowed:
        return _none("nobody may draft now"), replace(memory, trial_since_s=None, paying=False)
    if not use.output_tokens:
        return _none("nothing is asked"), replace(memory, trial_since_s=None)
    known = use.workers > 0 and use.output_tokens >= LEAST_TOKENS
    if known and use.share >= WORTH:
        memory = replace(memory, trial_since_s=None, paying=True, pause_s=FIRST_PAUSE_S)
        return _by_load(use, memory, growth, settled, keep_s, now_s)
    if memory.trial_since_s is not None:
        if use.workers == 0:  # it still starts
            return Wanted(1, 1, "a trial begins"), replace(memory, trial_since_s=now_s)
        if not known or now_s - memory.trial_since_s < trial_s:
            return Wanted(1, 1, f"a trial runs: {_share(use)}"), memory
        return _stop(use, memory, now_s)
    if memory.paying:
        if not known:
            return Wanted(1, 1, f"too little is asked to tell: {_share(use)}"), memory
        return _stop(use, memory, now_s)
    if now_s < memory.paused_until_s:
        left_s = memory.paused_until_s - now_s
        return _none(f"they don't pay; the next trial is in {left_s:.0f} s"), memory
    return Wanted(1, 1, "a trial begins"), replace(memory, trial_since_s=now_s)


def _stop(use: DraftUse, memory: DraftMemory, now_s: float) -> tuple[Wanted, DraftMemory]:
    pause_s = memory.pause_s
    stopped = replace(
        memory,
        trial_since_s=None,
        paying=False,
        paused_until_s=now_s + pause_s,
        pause_s=min(2 * pause_s, LONGEST_PAUSE_S),
    )
    return _none(f"they don't pay: {_share(use)}"), stopped


def _by_load(
    use: DraftUse,
    memory: DraftMemory,
    growth: float,
    settled: bool,
    keep_s: float,
    now_s: float,
) -> tuple[Wanted, DraftMemory]:
    busy = use.busy * growth
    up, keep = _whole(busy / BUSY), _whole(busy * (1 + MARGIN) / BUSY)
    why = f"busy {use.busy:.2f} of {use.workers}, {_share(use)}"
    late = use.misses > MISSED * max(use.asks, 1.0)
    if settled and (late or use.evictions):
        memory = replace(
            memory,
            missed_with=use.workers,
            missed_at_s=now_s,
            missed_sessions=use.sessions,
        )
        why = (
            f"{use.misses:.0f} drafts of {use.asks:.0f} came too late"
            if late
            else f"{use.evictions:.0f} contexts had no room"
        )
    recent = now_s - memory.missed_at_s < MISSES_REMEMBERED * keep_s
    if recent and use.sessions >= SESSIONS_ALIKE * memory.missed_sessions:
        up = max(up, memory.missed_with + 1)
    return Wanted(up, max(up, keep), why), memory


def _none(why: str) -> Wanted:
    return Wanted(0, 0, why)


def _whole(workers: float) -> int:
    return max(1, math.ceil(workers - 1e-9))


def _share(use: DraftUse) -> str:
    return f"{use.share:.0%} of the answers came from their drafts"
