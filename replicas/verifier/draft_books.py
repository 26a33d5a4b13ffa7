"""Running means and totals beside the governor: what waiting costs, and what is told of it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from replicas.verifier.draft_costs import Batch
from replicas.verifier.governor import Decision, Reason
from replicas.verifier.step_cost import Floats

RECENT: Final = 0.05
"""Weight of a new step in what is reported as recent."""
WAIT_WEIGHT: Final = 0.2
OLD_STEPS: Final = 64
OUTLIER: Final = 4.0
MODEL: Final = "worker:model"
"""The source whose tokens come one after the other."""
SLOPE_WEIGHT: Final = 0.05
"""Weight of a new step in how waits and lengths go together."""
SLOPE_PRIOR: Final = 0.25
"""Squared tokens by which lengths must differ before what was seen says more than the prior."""


class WaitMean:
    """A running mean that one outlier moves little."""

    __slots__ = ("_at_step", "count", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0
        self._at_step = 0

    def add(self, value: float, step: int) -> float:
        """Takes in what was measured in this step; the older the mean, the more it counts.
        Returns by how much, 0-1.
        """
        age, self._at_step = step - self._at_step, step
        self.count += 1
        weight = max(WAIT_WEIGHT, min(0.5, age / OLD_STEPS), 1 / self.count)
        if self.count == 1:
            self.mean = value
        most = OUTLIER * self.mean if self.mean and self.count > 1 / WAIT_WEIGHT else value
        self.mean += weight * (min(value, most) - self.mean)
        return weight


class WaitModel:
    """What asking for drafts costs a step, by the longest draft that is asked for.

    A line through the mean of recent steps. Its slope is learned from how waits differ between
    lengths. As long as all were alike, waits for a draft model, which makes one token after the
    other, are taken to grow with the length from zero on, and others to be the same for all.
    """

    def __init__(self) -> None:
        self._asked, self._unasked = WaitMean(), WaitMean()
        self._length = 0.0
        self._lengths_2 = self._waits_lengths = 0.0
        self._drafts, self._of_model = 0, 0.0
        """Part of recent drafts that a draft model made, 0-1."""

    @property
    def mean_s(self) -> float:
        """Of a step that asks, more than of one that does not, seconds."""
        return max(0.0, self._asked.mean - self._unasked.mean)

    def add(self, seconds: float, longest: int, step: int) -> None:
        """Drafting took so long in a step that asked for up to `longest` tokens; 0: for none."""
        if not longest:
            self._unasked.add(seconds, step)
            return
        off_length, off_s = longest - self._length, seconds - self._asked.mean
        usual_s = OUTLIER * self._asked.mean
        first = not self._asked.count
        weight = self._asked.add(seconds, step)
        self._length = longest if first else self._length + weight * off_length
        if not first:
            off_s = min(off_s, usual_s)
            self._lengths_2 += SLOPE_WEIGHT * (off_length**2 - self._lengths_2)
            self._waits_lengths += SLOPE_WEIGHT * (off_length * off_s - self._waits_lengths)

    def drafted(self, source: str) -> None:
        """A draft came from there."""
        self._drafts += 1
        weight = max(SLOPE_WEIGHT, 1 / self._drafts)
        self._of_model += weight * ((source == MODEL) - self._of_model)

    def by_length(self, longest: int) -> Floats:
        """[longest + 1] seconds; never falls, and 0 for no draft."""
        mean_s, waits = self.mean_s, np.zeros(longest + 1)
        if not mean_s or not longest:
            return waits
        growing_s = self._of_model * mean_s / self._length
        moments = self._waits_lengths + SLOPE_PRIOR * growing_s
        slope_s = max(0.0, moments / (self._lengths_2 + SLOPE_PRIOR))
        waits[1:] = mean_s + slope_s * (np.arange(1, longest + 1) - self._length)
        return np.maximum(waits, 0.0)


class LengthBooks:
    """What is told about the governor's decisions; means are over recent steps.

    Args:
        longest: Draft tokens that there are at most.
    """

    def __init__(self, longest: int) -> None:
        self.lengths = [0] * (longest + 1)
        self.expected_tokens = self.real_tokens = 0.0
        self.mean_length = self.mean_rows = self.mean_context = self.mean_found = 0.0
        self.gain = self.gain_needed = self.token_s = 0.0
        self._mean_acceptance = np.zeros(longest)
        self._reasons = np.zeros(len(Reason), dtype=np.int64)
        self._reason = ""
        self._steps = 0

    @property
    def acceptance(self) -> list[float]:
        """By place, as it was estimated."""
        rates: list[float] = self._mean_acceptance.tolist()
        return rates

    def chosen(self, batch: Batch, decision: Decision, lengths: Sequence[int]) -> None:
        """These lengths were chosen; probes may differ from the decision."""
        self._steps += 1
        weight = max(RECENT, 1 / self._steps)
        for length in lengths:
            self.lengths[length] += 1
        rows = len(lengths)
        self.mean_length += weight * (sum(lengths) / rows - self.mean_length)
        self.mean_rows += weight * (rows - self.mean_rows)
        self.mean_context += weight * (float(batch.context.mean()) - self.mean_context)
        self.mean_found += weight * (float(batch.found.mean()) - self.mean_found)
        self._mean_acceptance += weight * (batch.acceptance.sum(0) / rows - self._mean_acceptance)
        self.gain += weight * (decision.best_gain - self.gain)
        self.gain_needed += weight * (decision.best_gain_needed - self.gain_needed)
        self.token_s += weight * (decision.seconds / decision.tokens - self.token_s)
        self._reasons += np.bincount(decision.reasons, minlength=len(Reason))

    def brought(self, expected: float, real: int) -> None:
        """One sequence got so many tokens in a step, and was expected to get so many."""
        self.expected_tokens += expected
        self.real_tokens += real

    def reason(self) -> str:
        """The commonest since it was last asked for."""
        if self._reasons.any():
            self._reason = Reason(int(self._reasons.argmax())).name.lower()
            self._reasons[:] = 0
        return self._reason
