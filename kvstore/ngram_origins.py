"""Which batches of which worker have come: what is new, what is here twice, what is missing."""

from collections import OrderedDict
from typing import Final, Literal

WINDOW: Final = 64
"""Batches of one worker that may come in any order."""
MAX_ORIGINS: Final = 4096
"""Workers that are remembered, the latest."""

Arrival = Literal["new", "twice"]


class Origins:
    """Numbers of the batches that came, by worker.

    Attributes:
        missing: Batches that were overtaken by later ones of their worker and have not come:
            trimmed from the stream, removed from it, or lost with Redis.
    """

    def __init__(self) -> None:
        self.missing = 0
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def saw(self, origin: str, number: int) -> Arrival:
        """Takes in one batch.

        Args:
            origin: Its worker.
            number: 1 for the worker's first, then one more each time. What came before the
                first that is seen is not missing: it was long before us.
        """
        highest, mask = self._seen.pop(origin, (number - 1, 0))
        arrival: Arrival = "new"
        if number > highest:
            gap = number - highest - 1
            self.missing += gap
            shift = number - highest
            mask = ((mask << shift) | 1) & ((1 << WINDOW) - 1) if shift < WINDOW else 1
            highest = number
        else:
            bit = 1 << (highest - number)
            if highest - number >= WINDOW or mask & bit:
                arrival = "twice"
            else:
                mask |= bit
                self.missing = max(0, self.missing - 1)
        self._seen[origin] = (highest, mask)
        if len(self._seen) > MAX_ORIGINS:
            self._seen.popitem(last=False)
        return arrival
