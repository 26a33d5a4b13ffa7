"""Drafts made now and then where none would pay, so that a change is found again.

Who never drafts never learns. Each step earns a small share of its time; a probe, one draft
token of one sequence, is made when its price has been earned, so that all probes together
cost no more than that share. A sequence whose probe was in vain waits twice as long for its
next one.
"""

from collections.abc import Iterable
from typing import Final

FIRST_GAP_STEPS: Final = 8
LONGEST_GAP_STEPS: Final = 128
SAVED_STEPS: Final = 2.0
"""Step times that may be saved up, where a probe costs no more."""


class Turn:
    """When one sequence may be probed again."""

    __slots__ = ("at_step", "gap_steps", "is_out")

    def __init__(self, step: int) -> None:
        self.gap_steps = FIRST_GAP_STEPS
        self.at_step = step + FIRST_GAP_STEPS
        self.is_out = False
        """Whether its probe has not come back yet."""

    def came_back(self, accepted: bool, step: int) -> None:
        """What became of the probe."""
        self.is_out = False
        self.gap_steps = FIRST_GAP_STEPS if accepted else min(LONGEST_GAP_STEPS, 2 * self.gap_steps)
        self.at_step = step + self.gap_steps


class Probes:
    """The account that probes are paid from.

    Args:
        share: Part of all step time that may go into probes, 0-1.

    Attributes:
        made: So far.
        cost_s: What they were expected to cost in all, seconds.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved_s = 0.0
        self._price_s = 0.0
        self.made = 0
        self.cost_s = 0.0

    def earn(self, step_s: float) -> None:
        """A step that takes so long was made."""
        most_s = max(SAVED_STEPS * step_s, self._price_s)
        self._saved_s = min(self._saved_s + self._share * step_s, most_s)

    def pick(self, turns: Iterable[tuple[int, Turn]], price_s: float, step: int) -> int | None:
        """The row to probe in this step, if one is due and its price is there.

        Args:
            turns: Rows that have no draft and might, with their turns.
            price_s: Of one probe, seconds.
            step: Count of engine steps.
        """
        self._price_s = price_s
        if not self._share or price_s > self._saved_s:
            return None
        due = [(turn.at_step, row, turn) for row, turn in turns if turn.at_step <= step]
        if not due:
            return None
        _, row, turn = min(due, key=lambda entry: entry[:2])
        turn.is_out = True
        turn.at_step = step + turn.gap_steps
        self._saved_s -= price_s
        self.made += 1
        self.cost_s += price_s
        return row
