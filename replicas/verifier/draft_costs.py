"""What the drafts of a step are expected to bring, and to cost. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from replicas.verifier.step_cost import Floats, StepCost

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

AUTO: Final = -1
"""A draft as long as pays."""


@dataclass(frozen=True)
class Batch:
    """The sequences of the next step, one an entry.

    Attributes:
        context: [rows] KV tokens of the sequence.
        acceptance: [rows, K] probability that a place of the draft is accepted if all before
            it are, 0-1.
        found: [rows] probability that there is a draft if one is asked for, 0-1.
        longest: [rows] draft tokens that can be of use, 0 to K.
        wished: [rows] draft tokens that the request asks for; `AUTO` leaves it to us.
        low: [rows] whether the request is of the class that yields first.
    """

    context: Floats
    acceptance: Floats
    found: Floats
    longest: Ints
    wished: Ints
    low: Bools


class Books:
    """Expected tokens and seconds of a batch, by its lengths.

    Args:
        batch: The sequences.
        cost: Of a step.
        wait_s: What it takes longer if any draft is asked for, seconds.

    Attributes:
        gains: [rows, K] tokens that a place of the draft is expected to bring.
    """

    def __init__(self, batch: Batch, cost: StepCost, wait_s: float) -> None:
        self.batch, self.cost, self.wait_s = batch, cost, wait_s
        self.gains: Floats = np.cumprod(batch.acceptance, axis=1) * batch.found[:, None]
        self.rows = len(batch.context)
        self._sums = running_sums(self.gains)
        self._places = np.arange(self.rows)
        self._context = float(batch.context.sum())

    def tokens_by_row(self, lengths: Ints) -> Floats:
        """[rows] expected tokens of each sequence."""
        tokens: Floats = 1.0 + self._sums[self._places, lengths]
        return tokens

    def expected(self, lengths: Ints) -> tuple[float, float]:
        """Tokens, and seconds with waiting for drafts in them."""
        verified = lengths * self.batch.found
        rows = np.array([self.rows + float(verified.sum())])
        seconds = (
            float(self.cost.rows_s(rows)[0])
            + self.cost.kv_s * self._context
            + self.cost.sequence_s * self.rows
            + self.cost.draft_kv_s * float((verified * self.batch.context).sum())
        )
        if lengths.any():
            seconds += self.wait_s
        return float(self.tokens_by_row(lengths).sum()), seconds

    def token_s(self, lengths: Ints) -> float:
        """Time per token, seconds."""
        tokens, seconds = self.expected(lengths)
        return seconds / tokens


def mean_price(batch: Batch, cost: StepCost, lengths: Ints) -> float:
    """Seconds that a draft token of these lengths takes, on average. 0 where there is none."""
    verified = lengths * batch.found
    if not (drafted := float(verified.sum())):
        return 0.0
    row_s = mean_row_s(cost, len(lengths), drafted)
    return row_s + cost.draft_kv_s * float((verified * batch.context).sum()) / drafted


def mean_row_s(cost: StepCost, rows: float, more: float) -> float:
    """What one of `more` rows costs on average: it only orders tokens of unlike contexts."""
    low_s, high_s = cost.rows_s(np.array([rows, rows + max(more, 1.0)]))
    return float(high_s - low_s) / max(more, 1.0)


def running_sums(values: Floats) -> Floats:
    """[..., m + 1] running sums of [..., m] values, from 0 on."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums
