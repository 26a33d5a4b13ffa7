"""Learns online what a step costs, from the steps of the engine themselves.

Each step of pure decoding is a sample of rows, KV tokens and seconds. Two things are learned:

    line    fixed, by row, by KV token, by KV token of drafts, by sequence: least squares with
            forgetting, no coefficient below zero
    knots   how steps of just so many rows differ from the line: a running mean for each
            number of rows, counted as far as it stands out from the noise

Errors are a part of the step's time: a long step is no better known than a short one, and says no
more. A sample counts only as far from the model as the usual error allows (Huber 1964), so that an
outlier moves nothing much, and a lasting change soon is the usual. Directions that the
samples say nothing of (KV tokens while all contexts are alike) keep what was known. The same
samples give the same model.
"""

from typing import Any, Final

import numpy as np

from replicas.verifier.step_cost import StepCost, StepLoad

MEMORY: Final = 128.0
"""Samples after which the line has forgotten all but 1/e."""
KNOT_MEMORY: Final = 16.0
"""The same for a knot, in samples of its own rows."""
KNOT_HALF_LIFE: Final = 256.0
"""Samples of other rows after which a knot counts half: it may be about another time."""
STANDS_OUT: Final = 4.0
"""Squared standard errors that a knot must differ by from zero, or it is noise."""
KNOT_PRIOR: Final = 2.0
"""Samples that the line counts as against a knot."""
FEATURES: Final = 5
"""Of the line."""
PULL: Final = 0.003
"""Weight of what was known against the samples, for each coefficient."""
CLIP: Final = 2.0
"""Usual errors by which a sample may differ from the model and still count whole."""
ERROR_WEIGHT: Final = 0.05
FIT_EVERY: Final = 8
"""Samples between two fits, once there are `WARM`."""
WARM: Final = 32
FIRST_ROW_SHARE: Final = 0.05
"""Of the first sample's time, what one more row is taken to cost until it is known."""
MAX_ROWS: Final = 1024
SHORTEST_S: Final = 1e-6
"""No step is taken to be shorter where its error is weighed."""


class StepModel:
    """Learns a `StepCost`.

    Args:
        shapes: Execution shapes, rows; see `StepCost`.

    Attributes:
        samples: Taken in so far.
        error: Usual error of a step's time, 0-1 of that time.
        cost: What is known now. Before the first sample a step is free.
    """

    def __init__(self, shapes: tuple[int, ...] = ()) -> None:
        self.samples = 0
        self.error = 0.0
        self.cost = StepCost(0.0, 0.0, shapes=shapes)
        self._line = np.zeros(FEATURES)
        self._squares = np.zeros((FEATURES, FEATURES))
        self._products = np.zeros(FEATURES)
        self._usual = 0.25
        """Usual error of a sample that counts whole, 0-1 of its time."""
        self._knots: dict[int, _Knot] = {}
        """By rows of a shape."""

    def saw(self, load: StepLoad, seconds: float) -> None:
        """Takes in one step of pure decoding that took `seconds` besides drafting."""
        if load.verified < 1 or seconds <= 0 or load.verified > MAX_ROWS:
            return
        rows = self.cost.padded(int(load.verified))
        features = np.array([1.0, rows, load.context, load.draft_context, load.sequences])
        if not self.samples:
            row_s = FIRST_ROW_SHARE * seconds
            self._line[:2] = max(0.0, seconds - row_s * rows), min(row_s, seconds / rows)
            self.error = self._usual
        predicted_s = self.cost.seconds(load) if self.samples else seconds
        self._learn(features, rows, predicted_s, seconds)
        self.samples += 1
        if self.samples <= WARM or self.samples % FIT_EVERY == 0:
            self._fit()

    def _learn(
        self, features: "np.ndarray[Any, Any]", rows: int, predicted_s: float, seconds: float
    ) -> None:
        most_s = CLIP * max(self._usual, 0.01) * predicted_s
        off_s = min(max(seconds - predicted_s, -most_s), most_s)
        believed_s = predicted_s + off_s
        if self.samples:
            self._usual += ERROR_WEIGHT * (abs(off_s) / predicted_s - self._usual)
            self.error += ERROR_WEIGHT * (
                min(1.0, abs(seconds - predicted_s) / seconds) - self.error
            )
        keep, weight = 1.0 - 1.0 / MEMORY, max(predicted_s, 0.2 * seconds, SHORTEST_S) ** -2
        self._squares *= keep
        self._squares += np.outer(features, features) * weight
        self._products *= keep
        self._products += features * (believed_s * weight)
        on_line_s = float((features * self._line).sum())
        self._knot(rows).saw(believed_s - on_line_s, predicted_s, self.samples)

    def _knot(self, rows: int) -> "_Knot":
        if rows not in self._knots:
            self._knots[rows] = _Knot(self.samples)
        return self._knots[rows]

    def _fit(self) -> None:
        scale = np.sqrt(np.diag(self._squares))
        scale[scale == 0.0] = 1.0
        squares = self._squares / np.outer(scale, scale) + PULL * np.eye(FEATURES)
        products = self._products / scale + PULL * self._line * scale
        kept = list(range(FEATURES))
        line = np.zeros(FEATURES)
        while kept:
            line[:] = 0.0
            line[kept] = np.linalg.solve(squares[np.ix_(kept, kept)], products[kept])
            lowest = int(np.argmin(line))
            if line[lowest] >= 0.0:
                break
            kept.remove(lowest)
        self._line = line / scale
        fixed_s, row_s, kv_s, draft_kv_s, sequence_s = (float(value) for value in self._line)
        knots = tuple(
            (rows, self._knots[rows].off_line_s(self.samples, self._usual))
            for rows in sorted(self._knots)
        )
        self.cost = StepCost(fixed_s, row_s, kv_s, draft_kv_s, self.cost.shapes, knots, sequence_s)


class _Knot:
    """How steps of one number of rows differ from the line."""

    __slots__ = ("_at_sample", "_mean_s", "_step_s", "_weight")

    def __init__(self, sample: int) -> None:
        self._weight = self._mean_s = self._step_s = 0.0
        self._at_sample = sample

    def saw(self, off_line_s: float, step_s: float, sample: int) -> None:
        self._weight = min(self._weight_at(sample) + 1.0, KNOT_MEMORY)
        self._at_sample = sample
        self._mean_s += (off_line_s - self._mean_s) / self._weight
        self._step_s += (step_s - self._step_s) / self._weight

    def off_line_s(self, sample: int, usual: float) -> float:
        """Seconds; the nearer to zero the less of it stands out from the usual error `usual`, a
        part of the step, and the less and the longer ago it was seen.
        """
        weight = self._weight_at(sample)
        noise_s2 = STANDS_OUT * (usual * self._step_s) ** 2
        if self._mean_s**2 * weight <= noise_s2:
            return 0.0
        real = 1.0 - noise_s2 / (self._mean_s**2 * weight)
        return self._mean_s * real * weight / (weight + KNOT_PRIOR)

    def _weight_at(self, sample: int) -> float:
        fade: float = 0.5 ** ((sample - self._at_sample) / KNOT_HALF_LIFE)
        return self._weight * fade
