"""From what is needed to how many there are: at once up, slowly down, never to and fro.

Up goes to what is needed, in one step however large. Down goes to the most that was needed in the
last `keep_s`, and only when all that were started are there. What is needed for staying is asked
with a margin, so that a need on the edge of two numbers keeps the larger; and who was let go and
is needed again soon teaches to wait longer the next time.

    target < needed                             -> needed
    target > most needed (margin) in keep_s     -> that
    else                                        -> target

    down, and up again within 10 keep_s         -> keep_s counts double from now on, at most 16-fold
    down, and not up again for so long          -> keep_s counts half of that, at least once
"""

from dataclasses import dataclass, replace
from typing import Final

MARGIN: Final = 0.2
"""Part by which demand may grow after one was let go, before it is missed."""
REGRET: Final = 10.0
"""Times `keep_s` after which it is no mistake any more to have let one go."""
MOST_PATIENCE: Final = 16.0


@dataclass(frozen=True)
class Bounds:
    """Of one kind of worker.

    Attributes:
        least: Fewest; also how many there are while nothing is known.
        most: Most.
        keep_s: How long fewer must have been enough, seconds.
    """

    least: int
    most: int
    keep_s: float


@dataclass(frozen=True)
class Wanted:
    """What is needed now.

    Attributes:
        up: As many are needed now.
        keep: As many would be needed with a margin; not below `up`.
        why: In words.
    """

    up: int
    keep: int
    why: str


@dataclass(frozen=True)
class Memory:
    """Between two decisions.

    Attributes:
        needs: (last time, `keep`), oldest first; each need is below the one before, so that the
            first is the largest and there are no more than different needs.
        since_s: When it began.
        patience: Times `keep_s` that fewer must have been enough.
        let_go_s: When some were let go last, and were not needed again since.
    """

    needs: tuple[tuple[float, int], ...] = ()
    since_s: float | None = None
    patience: float = 1.0
    let_go_s: float | None = None


@dataclass(frozen=True)
class Step:
    """A decision.

    Attributes:
        target: How many there shall be.
        reason: In words.
        memory: For the next decision.
    """

    target: int
    reason: str
    memory: Memory


def remembered(memory: Memory, keep: int, keep_s: float, now_s: float) -> Memory:
    """With a need of now, and without those of longer than `keep_s` ago."""
    needs = [(at_s, need) for at_s, need in memory.needs if need > keep and now_s - at_s < keep_s]
    since_s = now_s if memory.since_s is None else memory.since_s
    return replace(memory, needs=(*needs, (now_s, keep)), since_s=since_s)


def step(
    bounds: Bounds, memory: Memory, wanted: Wanted | None, target: int, running: int, now_s: float
) -> Step:
    """How many there shall be.

    Args:
        bounds: Of the config.
        memory: Of the last decision; a new one begins to count `keep_s` anew.
        wanted: What is needed; None where nothing is known.
        target: How many there shall be by the last decision.
        running: How many of them are there.
        now_s: Now, seconds.
    """
    inside = min(max(target, bounds.least), bounds.most)
    if wanted is None:
        return Step(inside, "nothing is known yet", memory)
    up = min(max(wanted.up, bounds.least), bounds.most)
    keep = min(max(wanted.keep, up), bounds.most)
    keep_s = bounds.keep_s * memory.patience
    memory = remembered(memory, keep, keep_s, now_s)
    if up > inside:
        memory = _regretted(bounds, memory, now_s)
        short = f"; {wanted.up} would be needed" if wanted.up > bounds.most else ""
        return Step(up, f"from {inside} to {up}: {wanted.why}{short}", memory)
    most_lately = memory.needs[0][1]
    if most_lately >= inside:
        return Step(inside, wanted.why, memory)
    if memory.since_s is None or now_s - memory.since_s < keep_s:
        return Step(inside, f"{most_lately} may be enough: {wanted.why}", memory)
    if running < inside:
        return Step(inside, f"{most_lately} are enough, but others still start", memory)
    return Step(
        most_lately,
        f"from {inside} to {most_lately}: enough for {keep_s:g} s; {wanted.why}",
        replace(memory, let_go_s=now_s),
    )


def _regretted(bounds: Bounds, memory: Memory, now_s: float) -> Memory:
    """More are needed: more patience if some were let go lately, else less."""
    let_go_s = memory.let_go_s
    if let_go_s is None:
        return memory
    soon = now_s - let_go_s < REGRET * bounds.keep_s
    patience = memory.patience * 2 if soon else memory.patience / 2
    return replace(memory, let_go_s=None, patience=min(max(patience, 1.0), MOST_PATIENCE))
