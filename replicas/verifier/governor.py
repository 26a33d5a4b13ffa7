"""How many tokens to draft for each sequence of the next step: only what pays.

A step in which sequence i has a draft of k_i tokens is expected to bring

    N = sum_i (1 + sum_{j<=k_i} prod_{l<=j} a_il)   tokens, and to take
    T = T(rows + drafts, KV tokens) + W(longest draft)     seconds,

W being the wait for drafts, which all sequences share: a draft model makes one token after the
other. Time per token is total time over total tokens, T / N. Tokens are taken in the order of
their gain for their cost, one after another for as long as T / N falls. As it may rise first
and fall later (a draft token too many pays for a whole execution shape, the next ones are
free), all lengths of that order are looked at, for each longest draft, and the best is taken:
without steps that is the marginal rule, dT/dN < T/N (paceline theory notes, "Time per token"). No
draft at all is one of the lengths, so in the model it is never worse than not to speculate.

A step that verifies drafts takes longer, and whoever streams sees that between two chunks, each of
them longer as well. Where that counts, `longest_step` bounds it at the price of throughput.

Pure: what is known comes in, lengths and reasons go out. A draft is worth its wait only as
far as one is found; `found` weighs both what it brings and what it costs.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from replicas.verifier.step_cost import Floats, StepCost

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

START_GAIN: Final = 0.02
"""Part of the time per token that drafts must save before any is made where none was. Once
begun they go on for as long as they save anything: what is lost by either is at most this."""
MAX_PRESSURE: Final = 5
TRIM_LOW, STOP_LOW, STOP_ALL = 1, 2, 3
"""Pressure from which drafts of the low class are halved, and stopped, and all are stopped."""
AUTO: Final = -1


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
        price: Tokens that each of its draft tokens costs on average: dT / (T/N), without waiting.
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
    price: float

    @property
    def drafts(self) -> bool:
        """Whether any sequence is drafted for."""
        return bool(self.lengths.any())


def decide(
    batch: Batch,
    cost: StepCost,
    wait_s: float | Floats = 0.0,
    pressure: int = 0,
    drafting: bool = True,
    longest_step: float = math.inf,
) -> Decision:
    """Lengths of all drafts of the next step.

    O(rows * K), with a sort of so many; O(rows * K^2) where waits grow with the drafts.

    Args:
        batch: Its sequences, at least one.
        cost: Of a step.
        wait_s: What a step takes longer if any draft is asked for, seconds; [K + 1] by the
            longest of them.
        pressure: 0-5, from the front door.
        drafting: Whether the step before had drafts; without, `START_GAIN` is asked for.
        longest_step: Longest that a step with our drafts may take, as a multiple of the same step
            without them.
    """
    longest_of_all = batch.acceptance.shape[1]
    caps = np.minimum(batch.longest, longest_of_all)
    governed = batch.wished == AUTO
    lengths = np.where(governed, 0, np.minimum(batch.wished, caps))
    gains = np.cumprod(batch.acceptance, axis=1) * batch.found[:, None]
    sums = _sums(gains)
    waits_s = np.full(longest_of_all + 1, wait_s)
    waits_s[0] = 0.0
    books = _Books(batch, cost, waits_s, sums)
    plain_tokens, plain_s = books.expected(lengths)
    paying = _most_that_pays(books, gains, caps, governed, lengths, drafting, longest_step)
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
        if books.rate(pressed) >= books.rate(np.where(governed, 0, pressed)):
            # What is left no longer pays for its wait or its execution shape.
            reasons = np.where(governed & (pressed > 0), Reason.PRESSURE, reasons)
            pressed = np.where(governed, 0, pressed)
        result = pressed
    tokens, seconds = books.expected(result)
    tokens_by_row = 1.0 + sums[books.places, result]
    return Decision(
        lengths=result,
        reasons=reasons,
        tokens=tokens,
        seconds=seconds,
        plain_tokens=plain_tokens,
        plain_s=plain_s,
        tokens_by_row=tokens_by_row,
        best_gain=paying.best_gain,
        best_gain_needed=paying.best_gain_needed,
        price=_mean_price(batch, cost, result) / (seconds / tokens),
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


class _Books:
    """Expected tokens and seconds of a batch, by its lengths."""

    def __init__(self, batch: Batch, cost: StepCost, waits_s: Floats, sums: Floats) -> None:
        self.batch, self.cost, self.waits_s, self._sums = batch, cost, waits_s, sums
        self.rows = len(batch.context)
        self.places = np.arange(self.rows)
        self.context = float(batch.context.sum())

    def expected(self, lengths: Ints) -> tuple[float, float]:
        gains = self._sums[self.places, lengths]
        verified = lengths * self.batch.found
        rows = np.array([self.rows + float(verified.sum())])
        seconds = (
            float(self.cost.rows_s(rows)[0])
            + self.cost.kv_s * self.context
            + self.cost.sequence_s * self.rows
            + self.cost.draft_kv_s * float((verified * self.batch.context).sum())
        )
        return self.rows + float(gains.sum()), seconds + float(self.waits_s[lengths.max()])

    def rate(self, lengths: Ints) -> float:
        tokens, seconds = self.expected(lengths)
        return seconds / tokens


class _Paying(NamedTuple):
    """Lengths of the sequences that are ours to decide.

    Attributes:
        lengths: [rows] draft tokens.
        unbound: [rows] the same if steps might be of any length.
        best_gain: As `Decision` has it.
        best_gain_needed: As `Decision` has it.
    """

    lengths: Ints
    unbound: Ints
    best_gain: float = 0.0
    best_gain_needed: float = 0.0


def _most_that_pays(
    books: _Books,
    gains: Floats,
    caps: Ints,
    governed: Bools,
    given: Ints,
    drafting: bool,
    longest_step: float,
) -> _Paying:
    batch, cost = books.batch, books.cost
    places = gains.shape[1]
    rooms = np.where(governed, caps, 0)
    possible = (np.arange(places) < rooms[:, None]).ravel()
    candidates = np.flatnonzero(possible)
    none = np.zeros(len(rooms), dtype=np.int64)
    if not len(candidates):
        return _Paying(none, none)
    verified = float((given * batch.found).sum())
    row_s = _mean_row_s(cost, books.rows + verified, float((rooms * batch.found).sum()))
    token_s = row_s + cost.draft_kv_s * batch.context
    weighed = np.maximum(batch.found, 1e-6)
    score = (gains / (weighed * np.maximum(token_s, 1e-12))[:, None]).ravel()[candidates]
    # Stable, and a row's scores never rise with the place: no token comes before the ones
    # it builds on.
    order = candidates[np.argsort(-score, kind="stable")]
    owner, place = order // places, order % places
    found = batch.found[owner]
    tokens, seconds = books.expected(given)
    base = books.rows + verified
    # One line for each longest draft; where waits are alike the last is enough.
    waits_s, longest_given = books.waits_s, int(given.max())
    tops = np.arange(1, places + 1) if waits_s[1] < waits_s[-1] else np.array([places])
    taken = place < tops[:, None]
    in_all_tokens = tokens + _sums(taken * gains.ravel()[order])
    rows_s = cost.rows_s((base + _sums(taken * found)).ravel()).reshape(len(tops), -1)
    kv_s = cost.draft_kv_s * _sums(taken * (found * batch.context[owner]))
    in_all_s = seconds + (rows_s - rows_s[0, 0]) + kv_s
    in_all_s[:, 1:] += np.maximum(waits_s[tops] - waits_s[longest_given], 0.0)[:, None]
    rate = in_all_s / in_all_tokens
    unbound = best = int(np.argmin(rate))
    if longest_step < math.inf:
        allowed = in_all_s <= longest_step * in_all_s[0, 0]
        best = int(np.argmin(np.where(allowed, rate, math.inf)))
    if not drafting and rate.flat[best] > (1.0 - START_GAIN) * rate[0, 0]:
        unbound = best = 0

    def lengths(at: int) -> Ints:
        top, tried = divmod(at, rate.shape[1])
        return np.bincount(owner[:tried][taken[top, :tried]], minlength=len(rooms))

    certain = max(float(found[0]), 1e-6)
    first_s = float(cost.rows_s(np.array([base + found[0]]))[0] - rows_s[0, 0])
    first_s += cost.draft_kv_s * float(found[0] * batch.context[owner[0]])
    return _Paying(
        lengths(best),
        lengths(unbound),
        float(gains.ravel()[order[0]]) / certain,
        first_s / certain / (seconds / tokens),
    )


def _sums(values: Floats) -> Floats:
    """[n, m + 1] running sums of [n, m] values, from 0 on."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _mean_price(batch: Batch, cost: StepCost, lengths: Ints) -> float:
    """Seconds that a draft token of these lengths takes, on average. 0 where there is none."""
    verified = lengths * batch.found
    if not (drafted := float(verified.sum())):
        return 0.0
    row_s = _mean_row_s(cost, len(lengths), drafted)
    return row_s + cost.draft_kv_s * float((verified * batch.context).sum()) / drafted


def _mean_row_s(cost: StepCost, rows: float, more: float) -> float:
    """What one of `more` rows costs on average: it only orders tokens of unlike contexts."""
    low_s, high_s = cost.rows_s(np.array([rows, rows + max(more, 1.0)]))
    return float(high_s - low_s) / max(more, 1.0)
