"""Other ways that a text may go: continuations of the likeliest rejections of a draft.

A target that rejects a draft token says its own in its place. The best guess of it is the
draft model's second choice, and the likeliest place is where that was nearest to the first:

    generated   a  b  c  d  e
    second      q  r  s  t  u        doubt of  b -> r  is the greatest:
    branch      a  r [x  y  z]       what follows  a r  is generated as well
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from replicas.draft.generation import Choice

LEAST_DOUBT: Final = 0.02
"""Second choices less likely than this, over the first, are not prepared for."""
RESTART_STEPS: Final = 2
"""Steps of the model until a text that went an unprepared way has its first token: the one that
runs, and the one that reads what is new."""
READING_STEPS: Final = 0.15
ROW_STEPS: Final = 0.04
"""By how much of a step all others are held up when a branch's path is read, which is mostly in
the prefix cache, and then by each of its tokens. Measured on one CPU core, 135 M parameters: up to
0.25 and 0.03."""
MEMORY: Final = 32.0
"""Drafts, or steps, after which all but 1/e of what became of them is forgotten."""
UNSEEN: Final = 1e-3
"""Branches by which the model's doubts are believed again where none was for long."""


class Rejection(NamedTuple):
    """A way that a text may go instead: its chance, 0-1, and its tokens."""

    chance: float
    path: list[int]


@dataclass(slots=True, eq=False)
class Branch:
    """What follows a rejection.

    Attributes:
        path: Tokens from the confirmed text to the one that the target is expected to say.
        chance: That the text goes there, by the model's own doubts, 0-1.
        tokens: Generated behind them.
        choices: [tokens] how they were chosen.
        request: Its request while that runs.
    """

    path: list[int]
    chance: float = 0.0
    tokens: list[int] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    request: int | None = None


def likeliest_rejections(
    tokens: Sequence[int], choices: Sequence[Choice], drafted: int, having: Sequence[Branch]
) -> list[Rejection]:
    """Paths that a text may take instead of `tokens`, the likeliest first.

    The chance of a path is that of coming to its place, and then of the second choice there.

    Args:
        tokens: Generated behind the confirmed text.
        choices: [tokens] how they were chosen.
        drafted: Tokens of the draft that is being verified; the target says one behind it, too.
        having: Branches that are there already.
    """
    there = {tuple(branch.path) for branch in having}
    reached = 1.0
    paths: list[Rejection] = []
    for place, (_, other, doubt) in enumerate(choices[: drafted + 1]):
        path = [*tokens[:place], other]
        if other >= 0 and doubt >= LEAST_DOUBT and tuple(path) not in there:
            paths.append(Rejection(reached * doubt / (1.0 + doubt), path))
        reached /= 1.0 + doubt
    paths.sort(key=lambda rejection: -rejection.chance)
    return paths


class Foresight:
    """Whether a branch is worth holding up drafts, by what became of those before.

    It grows in the same steps of the model as they do, and makes each a little longer. That costs
    where texts go on as drafted, and saves a restart and the whole next draft where the branch is
    right.
    """

    def __init__(self) -> None:
        self._followed = 0.5
        self._foreseen = self._taken = 1.0
        self._held_up = 0.0

    def went(self, followed: bool, foreseen: float, taken: bool) -> None:
        """A text has gone on.

        Args:
            followed: Along the draft and the bonus token behind it.
            foreseen: Sum of the chances of its branches.
            taken: Along one of them.
        """
        self._followed += (followed - self._followed) / MEMORY
        keep = 1.0 - 1.0 / MEMORY
        self._foreseen = self._foreseen * keep + foreseen
        self._taken = self._taken * keep + taken

    def step(self, short: int, behind: int) -> float:
        """Drafts that are made later if this step and those after it take longer: now, or as a
        rule, if that is more. What nobody waits for yet soon will be, where the model is busy.

        Args:
            short: That are asked for and not there yet.
            behind: That are asked for next if all goes as drafted, and not there yet.
        """
        now = short + behind * self._followed
        self._held_up += (now - self._held_up) / MEMORY
        return max(now, self._held_up)

    def is_worth_it(self, chance: float, wanted: int, held_up: float) -> bool:
        """Whether a branch of this chance pays.

        Args:
            chance: By the model's doubts, 0-1.
            wanted: Tokens of a draft.
            held_up: Drafts that it makes later; see `step`.
        """
        right = (self._taken + UNSEEN) / (self._foreseen + UNSEEN)
        believed = chance * min(1.0, right)
        cost = held_up * (READING_STEPS + ROW_STEPS * wanted)
        return believed * (wanted + RESTART_STEPS) > cost
