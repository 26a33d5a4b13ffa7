"""How long a replica takes from the decision to its start: seen from Serve's counts."""

from typing import Final

NEWEST: Final = 0.3
"""Weight of the newest start."""


class StartTimes:
    """Told again and again how many there shall be and how many are there.

    Args:
        first_guess_s: Before any start was seen, seconds.
    """

    def __init__(self, first_guess_s: float) -> None:
        self.cold_start_s = first_guess_s
        self.seen = 0
        """Starts that were measured."""
        self._target: int | None = None
        self._waited_for: list[tuple[int, float]] = []

    def saw(self, target: int, running: int, now_s: float) -> None:
        """Takes in both numbers as of now (seconds)."""
        if self._target is not None:
            for number in range(max(self._target, running) + 1, target + 1):
                self._waited_for.append((number, now_s))
        # One that is not wanted any more will not come.
        self._waited_for = [wait for wait in self._waited_for if wait[0] <= target]
        while self._waited_for and self._waited_for[0][0] <= running:
            _, since_s = self._waited_for.pop(0)
            took_s = now_s - since_s
            self.cold_start_s += (NEWEST if self.seen else 1.0) * (took_s - self.cold_start_s)
            self.seen += 1
        self._target = target
