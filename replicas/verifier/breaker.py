"""Whether a draft worker may be asked: the circuit breaker of one worker.

    closed     ask; 3 misses in a row or 1 violation       -> open
    open       don't; when its time is over, the next ask  -> half_open
    half_open  one ask, the probe: answered                -> closed
                                   missed or violated      -> open, for twice as long

A worker that fails costs a few waits, then nothing, and one ask now and then. Time comes
in; nothing here reads a clock.
"""

from typing import Final, Literal

State = Literal["closed", "open", "half_open"]

MISSES_TO_OPEN: Final = 3
"""In a row: a single one is a busy moment."""
SHORTEST_OPEN_S: Final = 0.5
LONGEST_OPEN_S: Final = 8.0
ANSWERS_TO_TRUST: Final = 8
"""Answers in a row after which the next opening is a short one again."""


class Breaker:
    """The state of one worker, by what was reported of it.

    Attributes:
        opened: Times it opened.
        misses: Answers that were not there by their deadline.
        violations: Answers that were malformed or lied.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.misses = 0
        self.violations = 0
        self._state: State = "closed"
        self._missed_in_row = 0
        self._answered_in_row = 0
        self._open_until_s = 0.0
        self._next_open_s = SHORTEST_OPEN_S

    @property
    def state(self) -> State:
        """What was last decided. An open one stays open until somebody may ask."""
        return self._state

    def may_ask(self, now_s: float) -> bool:
        """Whether to ask now. Whoever is told yes has to ask, and to report what came of it:
        of a breaker that was open, this is the one probe.
        """
        if self._state == "open" and now_s >= self._open_until_s:
            self._state = "half_open"
            return True
        return self._state == "closed"

    def answered(self, now_s: float) -> None:
        """A valid answer came in time."""
        if self._state == "open":
            return
        self._state = "closed"
        self._missed_in_row = 0
        self._answered_in_row += 1
        if self._answered_in_row >= ANSWERS_TO_TRUST:
            self._next_open_s = SHORTEST_OPEN_S

    def missed(self, now_s: float) -> None:
        """No answer came by its deadline, or the ask could not be sent."""
        self.misses += 1
        self._answered_in_row = 0
        self._missed_in_row += 1
        if self._state == "half_open" or self._missed_in_row >= MISSES_TO_OPEN:
            self._open(now_s)

    def violated(self, now_s: float) -> None:
        """An answer came that cannot be read or must not be believed."""
        self.violations += 1
        self._open(now_s)

    def _open(self, now_s: float) -> None:
        if self._state == "open":
            return
        self._state = "open"
        self.opened += 1
        self._missed_in_row = 0
        self._answered_in_row = 0
        self._open_until_s = now_s + self._next_open_s
        self._next_open_s = min(LONGEST_OPEN_S, 2 * self._next_open_s)
