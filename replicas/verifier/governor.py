"""How many tokens to draft for each sequence of the next step: only what pays.

A step in which sequence i has a draft of k_i tokens is expected to bring

    N = sum_i (1 + sum_{j<=k_i} prod_{l<=j} a_il)   tokens, and to take
    T = T(rows + drafts, KV tokens) + W             seconds,

W being what it takes to ask for drafts, if there are any. How long to wait for one that a model is
still making is decided when its worker has said what there is (`patience.py`). Time per token is
total time over total tokens, T / N. Tokens are taken in the order of their gain for their cost, one
after another for as long as T / N falls. As it may rise first and fall later (a draft token too
many pays for a whole execution shape, the next ones are free), all lengths of that order are looked
at, and the best is taken: without steps that is the marginal rule, dT/dN < T/N (paceline theory
notes, "Time per token"). No draft at all is one of the lengths, so in the model it is never worse
than not to speculate.

A step that verifies drafts takes longer, and whoever streams sees that between two chunks, each of
them longer as well. Where that counts, `longest_step` bounds it at the price of throughput.

Pure: what is known comes in, lengths and reasons go out. A draft is worth its wait only as
far as one is found; `found` weighs both what it brings and what it costs.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from replicas.verifier.best_lengths import most_that_pays
from replicas.verifier.draft_costs import AUTO, Batch, Books, Bools, Ints, mean_price
from replicas.verifier.step_cost import Floats, StepCost

MAX_PRESSURE: Final = 5
TRIM_LOW, STOP_LOW, STOP_ALL = 1, 2, 3
"""Pressure from which drafts of the low class are halved, and stopped, and all are stopped."""


class Reason(IntEnum):
    """Why a sequence's draft is as long as it is."""

    PAYS = 0
    """Each of its tokens is expected to save time, one more is not."""
    LONGEST = 1
    """One more might pay, but it is the longest, or the sequence ends there."""
    COSTS_MORE = 2
    """None: the first token is expected to cost more than it saves."""
    REQUESTED = 3
    """The request or its class says so."""
    PRESSURE = 4
    """The front door asked for less."""
    PROBE = 5
    """None would pay; one is made to see whether that is still so."""
    STEP = 6
    """One more would pay, but the step would take longer than it may."""


@dataclass(frozen=True)
class Decision:
    """Draft lengths and what is expected of them.

    Attributes:
        lengths: [rows] draft tokens.
        reasons: [rows] a `Reason` each.
        tokens: Expected tokens of the step.
        seconds: Expected time of the step, waiting for drafts included.
        plain_tokens: The same without the drafts that we decide on.
        plain_s: The same.
        tokens_by_row: [rows] expected tokens of each sequence.
        best_gain: Tokens that the best draft token would bring. 0 where none is possible.
        best_gain_needed: Tokens that it would have to bring: dT / (T/N) of that token alone,
            without waiting.
        draft_token_s: What each of its draft tokens takes on average, seconds, without waiting.
    """

    lengths: Ints
    reasons: Ints
    tokens: float
    seconds: float
    plain_tokens: float
    plain_s: float
    tokens_by_row: Floats
    best_gain: float
    best_gain_needed: float
    draft_token_s: float

    @property
    def price(self) -> float:
        """Tokens that each of its draft tokens costs on average: dT / (T/N), without waiting."""
        return self.draft_token_s / (self.seconds / self.tokens)

    @property
    def drafts(self) -> bool:
        """Whether any sequence is drafted for."""
        return bool(self.lengths.any())


def decide(
    batch: Batch,
    cost: StepCost,
    wait_s: float = 0.0,
    pressure: int = 0,
    drafting: bool = True,
    longest_step: float = math.inf,
) -> Decision:
    """Lengths of all drafts of the next step.

    O(rows * K), with a sort of so many.

    Args:
        batch: Its sequences, at least one.
        cost: Of a step.
        wait_s: What a step takes longer if any draft is asked for, seconds.
        pressure: 0-5, from the front door.
        drafting: Whether the step before had drafts; without, `START_GAIN` is asked for.
        longest_step: Longest that a step with our drafts may take, as a multiple of the same step
            without them.
    """
    longest_of_all = batch.acceptance.shape[1]
    caps = np.minimum(batch.longest, longest_of_all)
    governed = batch.wished == AUTO
    lengths = np.where(governed, 0, np.minimum(batch.wished, caps))
    books = Books(batch, cost, wait_s)
    plain_tokens, plain_s = books.expected(lengths)
    paying = most_that_pays(books, caps, governed, lengths, drafting, longest_step)
    result = lengths + paying.lengths
    reasons = np.where(paying.lengths, int(Reason.PAYS), int(Reason.COSTS_MORE))
    reasons[paying.lengths < paying.unbound] = Reason.STEP
    reasons[paying.lengths == caps] = Reason.LONGEST
    reasons[~governed] = Reason.REQUESTED
    for level in range(1, min(pressure, MAX_PRESSURE) + 1):
        pressed = under_pressure(result, batch.low, longest_of_all, level)
        if (pressed == result).all():
            continue
        reasons = np.where(pressed < result, Reason.PRESSURE, reasons)
        if books.token_s(pressed) >= books.token_s(np.where(governed, 0, pressed)):
            # What is left no longer pays for its wait or its execution shape.
            reasons = np.where(governed & (pressed > 0), Reason.PRESSURE, reasons)
            pressed = np.where(governed, 0, pressed)
        result = pressed
    tokens, seconds = books.expected(result)
    return Decision(
        lengths=result,
        reasons=reasons,
        tokens=tokens,
        seconds=seconds,
        plain_tokens=plain_tokens,
        plain_s=plain_s,
        tokens_by_row=books.tokens_by_row(result),
        best_gain=paying.best_gain,
        best_gain_needed=paying.best_gain_needed,
        draft_token_s=mean_price(batch, cost, result),
    )


def under_pressure(lengths: Ints, low: Bools, longest: int, pressure: int) -> Ints:
    """Lengths that are left under pressure: none is longer than without it.

    Args:
        lengths: [rows] draft tokens.
        low: [rows] whether the request is of the class that yields first.
        longest: Draft tokens that there are at most; the low class keeps half at `TRIM_LOW`.
        pressure: 0-5.
    """
    if pressure >= STOP_ALL:
        return np.zeros_like(lengths)
    if pressure >= STOP_LOW:
        return np.where(low, 0, lengths)
    if pressure >= TRIM_LOW:
        return np.where(low, np.minimum(lengths, longest // 2), lengths)
    return lengths
