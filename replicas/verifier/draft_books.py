"""Running means and totals beside the governor: what waiting costs, and what is told of it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from replicas.verifier.draft_costs import Batch
from replicas.verifier.governor import Decision, Reason

RECENT: Final = 0.05
"""Weight of a new step in what is reported as recent."""
WAIT_WEIGHT: Final = 0.2
OLD_STEPS: Final = 64
OUTLIER: Final = 4.0
PACE_WEIGHT: Final = 0.1
"""Weight of a new step in what a second is worth."""


class WaitMean:
    """A running mean that one outlier moves little."""

    __slots__ = ("_at_step", "count", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0
        self._at_step = 0

    def add(self, value: float, step: int) -> None:
        """Takes in what was measured in this step; the older the mean, the more it counts."""
        age, self._at_step = step - self._at_step, step
        self.count += 1
        weight = max(WAIT_WEIGHT, min(0.5, age / OLD_STEPS), 1 / self.count)
        if self.count == 1:
            self.mean = value
        most = OUTLIER * self.mean if self.mean and self.count > 1 / WAIT_WEIGHT else value
        self.mean += weight * (min(value, most) - self.mean)


class TimeBooks:
    """What drafting takes, and what a second of the engine is worth; means over recent steps."""

    def __init__(self) -> None:
        self._asking, self._idling, self._waiting = WaitMean(), WaitMean(), WaitMean()
        self._step_s = self._drafting_s = self._tokens = 0.0
        self._new = self._count = 0

    @property
    def asking_s(self) -> float:
        """What a step takes longer because it asks for drafts, besides waiting for what is being
        made, seconds.
        """
        return max(0.0, self._asking.mean - self._idling.mean)

    @property
    def wait_s(self) -> float:
        """The same with that waiting, seconds."""
        return self.asking_s + self._waiting.mean

    def stepped(self, seconds: float) -> None:
        """A step of pure decoding took so long, drafting left out."""
        self._step_s += (PACE_WEIGHT if self._step_s else 1.0) * (seconds - self._step_s)

    def drafted(self, seconds: float, chosen_s: float, asked: bool, step: int) -> None:
        """Drafting took so long in a step.

        Args:
            seconds: In all.
            chosen_s: Of these, waited for what was being made.
            asked: Whether it asked for drafts.
            step: Count of engine steps.
        """
        (self._asking if asked else self._idling).add(seconds - chosen_s, step)
        if asked:
            self._waiting.add(chosen_s, step)
        self._drafting_s += PACE_WEIGHT * (seconds - self._drafting_s)

    def brought(self, tokens: int) -> None:
        """A step brought one sequence so many tokens."""
        self._new += tokens
        self._count += 1

    def tokens_per_s(self, rows: int) -> float:
        """That so many sequences get in a second; 0 where nothing is known yet."""
        if self._count:
            tokens = self._new / self._count
            self._tokens += (PACE_WEIGHT if self._tokens else 1.0) * (tokens - self._tokens)
            self._new = self._count = 0
        return rows * self._tokens / (self._step_s + self._drafting_s) if self._step_s else 0.0


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
