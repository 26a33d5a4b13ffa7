"""Other ways that a text may go: continuations of the likeliest rejections of a draft.

A target that rejects a draft token says its own in its place. The best guess of it is the
draft model's second choice, and the likeliest place is where that was nearest to the first:

    generated   a  b  c  d  e
    second      q  r  s  t  u        doubt of  b -> r  is the greatest:
    branch      a  r [x  y  z]       what follows  a r  is generated as well
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from replicas.draft.generation import Choice

LEAST_DOUBT: Final = 0.02
"""Second choices less likely than this, over the first, are not prepared for."""


@dataclass(slots=True, eq=False)
class Branch:
    """What follows a rejection.

    Attributes:
        path: Tokens from the confirmed text to the one that the target is expected to say.
        tokens: Generated behind them.
        request: Its request while that runs.
    """

    path: list[int]
    tokens: list[int] = field(default_factory=list)
    request: int | None = None


def likeliest_rejections(
    tokens: Sequence[int], choices: Sequence[Choice], drafted: int, having: Sequence[Branch]
) -> list[list[int]]:
    """Paths that a text may take instead of `tokens`, the likeliest first.

    The chance of a path is that of coming to its place, and then of the second choice there,
    both by the draft model's own doubts.

    Args:
        tokens: Generated behind the confirmed text.
        choices: [tokens] how they were chosen.
        drafted: Tokens of the draft that is being verified; the target says one behind it, too.
        having: Branches that are there already.
    """
    there = {tuple(branch.path) for branch in having}
    reached = 1.0
    paths: list[tuple[float, list[int]]] = []
    for place, (_, other, doubt) in enumerate(choices[: drafted + 1]):
        path = [*tokens[:place], other]
        if other >= 0 and doubt >= LEAST_DOUBT and tuple(path) not in there:
            paths.append((reached * doubt / (1.0 + doubt), path))
        reached /= 1.0 + doubt
    paths.sort(key=lambda entry: -entry[0])
    return [path for _, path in paths]
