"""How long a step should wait for draft tokens that are still being made. Pure.

A draft model makes one token after the other. Those that it guessed ahead are there at once; after
a wrong guess it begins anew, and the step may wait for some of them, or go on without:

    there      a b .        nothing to wait for: two tokens to verify now
    to come    . . c d      c in 12 ms, d 9 ms later

All sequences of the step wait together, so each moment at which some token comes is weighed: all
that has come by then, against the tokens that the engine makes in that time otherwise. What is not
waited for is not lost: the model goes on while the step runs, and is ready for the next one.

It is the rule of renewal-reward processes (Ross, Stochastic Processes, 1996, 3.6): where steps are
unlike, each is to be judged by the long-run rate, not by its own.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Outlook(NamedTuple):
    """What a worker has said of one sequence.

    Attributes:
        have: Draft tokens that are there.
        next_s: Until one more is, seconds from now; infinite where none is to come.
        token_s: Between further ones, seconds.
    """

    have: int
    next_s: float = math.inf
    token_s: float = 0.0


Patience = Callable[[Mapping[int, Outlook]], float]
"""What is there and to come, by session -> seconds to wait now, 0 for no longer."""


def worth_waiting(rows: Iterable[tuple[Sequence[float], Outlook]], tokens_per_s: float) -> float:
    """Seconds to wait, 0 for not at all.

    Args:
        rows: For each sequence the tokens that each place of its draft is worth, as long as the
            draft may be, and its outlook.
        tokens_per_s: That the engine makes.
    """
    arrivals = [
        (outlook.next_s + more * outlook.token_s, worth)
        for places, outlook in rows
        if outlook.next_s < math.inf
        for more, worth in enumerate(places[outlook.have :])
    ]
    # Of those that come together the worst first: none is taken without the others.
    arrivals.sort()
    best = best_s = reached = 0.0
    for at_s, worth in arrivals:
        reached += worth
        if (more := reached - at_s * tokens_per_s) > best:
            best, best_s = more, at_s
    return best_s
