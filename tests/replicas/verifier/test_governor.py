"""The governor's decision: worked cases, and what holds for every batch."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.verifier.best_lengths import START_GAIN
from replicas.verifier.draft_costs import AUTO, Batch
from replicas.verifier.governor import (
    MAX_PRESSURE,
    STOP_ALL,
    STOP_LOW,
    TRIM_LOW,
    Decision,
    Reason,
    decide,
)
from replicas.verifier.step_cost import StepCost, StepLoad

K = 4
GRAPHS = (1, 2, 4, 8, 16, 24, 32)
FLAT = StepCost(0.02, 0.0001)
STEEP = StepCost(0.012, 0.002)


def batch(
    acceptance: list[list[float]] | list[float],
    context: list[float] | None = None,
    found: list[float] | None = None,
    longest: list[int] | None = None,
    wished: list[int] | None = None,
    low: list[bool] | None = None,
) -> Batch:
    rows = len(acceptance)
    table = [a if isinstance(a, list) else [a] * K for a in acceptance]
    return Batch(
        context=np.array(context or [100.0] * rows),
        acceptance=np.array(table),
        found=np.array(found or [1.0] * rows),
        longest=np.array(longest or [K] * rows),
        wished=np.array(wished or [AUTO] * rows),
        low=np.array(low or [False] * rows),
    )


def lengths(decision: Decision) -> list[int]:
    chosen: list[int] = decision.lengths.tolist()
    return chosen


def test_drafts_that_are_right_are_as_long_as_can_be() -> None:
    """Where a row costs next to nothing."""
    decision = decide(batch([0.9]), FLAT)
    assert lengths(decision) == [K]
    assert decision.reasons[0] == Reason.LONGEST
    assert decision.tokens == pytest.approx(1 + 0.9 + 0.81 + 0.729 + 0.6561)


def test_drafts_that_are_wrong_are_none() -> None:
    """Zero is a normal answer, with the numbers that led to it."""
    decision = decide(batch([0.05]), STEEP)
    assert lengths(decision) == [0]
    assert decision.reasons[0] == Reason.COSTS_MORE
    assert decision.best_gain == pytest.approx(0.05)
    # One row more costs 2 ms, a token takes 14 ms.
    assert decision.best_gain_needed == pytest.approx(2 / 14)
    assert (decision.tokens, decision.seconds) == (decision.plain_tokens, decision.plain_s)


def test_lengths_of_one_step_differ() -> None:
    """Each sequence gets what its own drafts are worth."""
    chosen = lengths(decide(batch([0.95, 0.0, 0.6, 0.3]), STEEP))
    assert chosen[0] == K
    assert chosen[1] == 0
    assert K > chosen[2] > chosen[3]


def test_a_bigger_batch_drafts_less() -> None:
    """The reads of the weights are shared already, and rows compete for compute."""
    mean = [sum(lengths(decide(batch([0.6] * rows), STEEP))) / rows for rows in (1, 4, 16, 64)]
    assert mean == sorted(mean, reverse=True)
    assert mean[0] >= 2
    assert mean[-1] == 0


def test_longer_contexts_make_shorter_drafts() -> None:
    """Each draft token attends to all of them."""
    cost = StepCost(0.012, 0.0005, 1e-6, 2e-6)
    chosen = [lengths(decide(batch([0.6], [context]), cost))[0] for context in (1e2, 2e3, 2e4)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]


def test_an_execution_shape_is_filled_or_not_begun() -> None:
    """Eight rows run as eight; one more pays for sixteen, and then seven are free."""
    shapes = StepCost(0.005, 0.001, shapes=GRAPHS)
    one_more = decide(batch([0.5] * 8, longest=[1] + [0] * 7, wished=[AUTO] * 8), shapes)
    assert lengths(one_more) == [0] * 8
    many = decide(batch([0.9] * 8), shapes)
    assert int(many.lengths.sum()) + 8 in GRAPHS
    assert int(many.lengths.sum()) > 0


def test_a_step_takes_no_longer_than_it_may() -> None:
    """As many tokens as fit, the best first, and the reason says that more would pay."""
    free = decide(batch([0.9, 0.5]), STEEP)
    bound = decide(batch([0.9, 0.5]), STEEP, longest_step=1.3)
    assert free.seconds > 1.3 * free.plain_s
    assert bound.seconds <= 1.3 * bound.plain_s
    assert lengths(bound) == [2, 0]  # 12 + 2 * 2 ms; two rows more are a quarter of it
    assert bound.reasons.tolist() == [Reason.STEP, Reason.STEP]
    assert decide(batch([0.9]), STEEP, wait_s=0.1, longest_step=1.3).drafts is False


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(1, 3), st.floats(0, 0.01))
def test_a_bound_step_is_bound_and_never_slower_in_the_model(rates, longest_step, wait_s) -> None:
    """Whatever is accepted: between no drafts and those that pay best."""
    free = decide(batch(rates), STEEP, wait_s)
    bound = decide(batch(rates), STEEP, wait_s, longest_step=longest_step)
    assert bound.seconds <= longest_step * bound.plain_s * (1 + 1e-9)
    rate = bound.seconds / bound.tokens
    assert free.seconds / free.tokens <= rate * (1 + 1e-9)
    assert rate <= bound.plain_s / bound.plain_tokens * (1 + 1e-9)


def test_waiting_for_drafts_must_pay_as_well() -> None:
    """A slow draft worker is worth its wait where drafts are long and right, or not at all."""
    assert lengths(decide(batch([0.6]), STEEP)) != [0]
    assert lengths(decide(batch([0.6]), STEEP, wait_s=0.05)) == [0]
    assert lengths(decide(batch([0.95]), STEEP, wait_s=0.01)) == [K]


def test_a_draft_that_is_seldom_found_is_seldom_worth_a_wait() -> None:
    """Without a wait asking costs nothing; with one the few tokens must pay for all of it."""
    rare = batch([0.8], found=[0.05])
    assert lengths(decide(rare, STEEP)) != [0]
    assert lengths(decide(rare, STEEP, wait_s=0.003)) == [0]


def test_drafting_begins_for_more_than_it_goes_on_for() -> None:
    """What would save one per cent goes on but does not begin: no flapping, and no cliff, as it
    is worth that one per cent.
    """
    cost, drafts = StepCost(0.010, 0.005), batch([[0.34, 0.0, 0.0, 0.0]])
    gain = 1 - (0.020 / 1.34) / 0.015
    assert 0 < gain < START_GAIN
    assert lengths(decide(drafts, cost, drafting=True)) == [1]
    assert lengths(decide(drafts, cost, drafting=False)) == [0]


def test_a_request_gets_what_it_asks_for() -> None:
    """As far as it is of use; the others are decided as before."""
    asked = batch([0.0, 0.9, 0.9], longest=[K, 2, K], wished=[3, 4, 0])
    decision = decide(asked, FLAT)
    assert lengths(decision) == [3, 2, 0]
    assert set(decision.reasons.tolist()) == {Reason.REQUESTED}


def test_pressure_takes_drafts_from_the_low_class_first() -> None:
    """Halved, stopped, and at last all stopped."""
    mixed = batch([0.95] * 4, low=[True, False, True, False])
    by_pressure = [lengths(decide(mixed, FLAT, pressure=p)) for p in range(MAX_PRESSURE + 1)]
    assert by_pressure[0] == [K] * 4
    assert by_pressure[TRIM_LOW] == [K // 2, K, K // 2, K]
    assert by_pressure[STOP_LOW] == [0, K, 0, K]
    assert all(chosen == [0] * 4 for chosen in by_pressure[STOP_ALL:])
    assert set(decide(mixed, FLAT, pressure=STOP_ALL).reasons.tolist()) == {Reason.PRESSURE}


rate = st.floats(0, 1)
costs = st.builds(
    StepCost,
    fixed_s=st.floats(1e-4, 0.1),
    row_s=st.floats(1e-6, 0.01),
    kv_s=st.floats(0, 1e-6),
    draft_kv_s=st.floats(0, 1e-6),
    shapes=st.sampled_from([(), GRAPHS]),
    knots=st.lists(
        st.tuples(st.integers(1, 40), st.floats(-0.005, 0.01)), max_size=4, unique_by=lambda k: k[0]
    ).map(lambda knots: tuple(sorted(knots))),
)
straight = st.builds(
    StepCost,
    fixed_s=st.floats(1e-4, 0.1),
    row_s=st.floats(1e-6, 0.01),
    kv_s=st.floats(0, 1e-6),
    draft_kv_s=st.just(0.0),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.integers(1, 6))

    def many(one: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
        return st.lists(one, min_size=rows, max_size=rows)

    return Batch(
        context=np.array(draw(many(st.integers(1, 8000))), dtype=float),
        acceptance=np.array(draw(many(st.lists(rate, min_size=K, max_size=K)))),
        found=np.array(draw(many(rate))),
        longest=np.array(draw(many(st.integers(0, K)))),
        wished=np.array(draw(many(st.sampled_from([AUTO, AUTO, AUTO, 0, 2, K])))),
        low=np.array(draw(many(st.booleans()))),
    )


waits = st.floats(0, 0.02)
pressures = st.integers(0, MAX_PRESSURE)


def rate_of(decision: Decision) -> float:
    return decision.seconds / decision.tokens


@given(batches(), costs, waits, pressures, st.booleans())
def test_no_decision_is_worse_than_no_drafts(
    any_batch: Batch, cost: StepCost, wait_s: float, pressure: int, drafting: bool
) -> None:
    """In the model, time per token is at most what it is without the drafts we decide on."""
    decision = decide(any_batch, cost, wait_s, pressure, drafting)
    if (any_batch.wished <= 0).all():
        none = decide(replace(any_batch, wished=np.zeros_like(any_batch.wished)), cost, wait_s)
        assert rate_of(decision) <= rate_of(none) * (1 + 1e-9)
    if pressure == 0:
        assert rate_of(decision) <= decision.plain_s / decision.plain_tokens * (1 + 1e-9)
    caps = np.minimum(any_batch.longest, K)
    assert (decision.lengths >= 0).all()
    assert (decision.lengths <= caps).all()


@settings(max_examples=60)
@given(batches(), straight, waits)
def test_no_other_lengths_are_better(any_batch: Batch, cost: StepCost, wait_s: float) -> None:
    """Where every row costs the same, all combinations of lengths were tried."""
    small = Batch(
        any_batch.context[:3],
        any_batch.acceptance[:3],
        any_batch.found[:3],
        any_batch.longest[:3],
        np.full(len(any_batch.context[:3]), AUTO),
        any_batch.low[:3],
    )
    decision = decide(small, cost, wait_s)
    for tried in product(*(range(cap + 1) for cap in small.longest)):
        tokens = float(len(tried))
        rows = float(len(tried))
        for i, length in enumerate(tried):
            reached = small.found[i]
            for place in range(length):
                reached *= small.acceptance[i, place]
                tokens += reached
            rows += length * small.found[i]
        load = StepLoad(rows, float(small.context.sum()))
        seconds = cost.seconds(load) + wait_s * (max(tried) > 0)
        assert rate_of(decision) <= seconds / tokens * (1 + 1e-9)


@given(batches(), straight, waits, st.data())
def test_more_acceptance_never_shortens_the_draft_that_has_it(
    any_batch: Batch, cost: StepCost, wait_s: float, data: st.DataObject
) -> None:
    """Of one sequence, at any places of its draft."""
    row = data.draw(st.integers(0, len(any_batch.context) - 1))
    better = any_batch.acceptance.copy()
    for place in range(K):
        better[row, place] += data.draw(rate) * (1 - better[row, place])
    before = decide(any_batch, cost, wait_s)
    after = decide(replace(any_batch, acceptance=better), cost, wait_s)
    assert after.lengths[row] >= before.lengths[row] or near(before, after)


@given(st.integers(1, 12), rate, rate, costs, waits)
def test_more_acceptance_never_shortens_drafts_of_like_sequences(
    rows: int, low: float, more: float, cost: StepCost, wait_s: float
) -> None:
    """Whatever shape the steps have."""
    before = decide(batch([low] * rows), cost, wait_s)
    after = decide(batch([low + more * (1 - low)] * rows), cost, wait_s)
    assert after.lengths.sum() >= before.lengths.sum() or near(before, after)


@given(batches(), straight, waits, st.floats(1, 10))
def test_a_higher_price_never_lengthens_a_draft(
    any_batch: Batch, cost: StepCost, wait_s: float, factor: float
) -> None:
    """Rows that cost more of the same step."""
    rows, rises = len(any_batch.context), (factor - 1) * cost.row_s
    dearer = replace(
        cost, row_s=cost.row_s + rises, knots=((1, -rises * rows), (2000, -rises * rows))
    )
    before = decide(any_batch, cost, wait_s)
    after = decide(any_batch, dearer, wait_s)
    if dearer.fixed_s + dearer.row_s - rises * rows > 1e-6:
        assert (after.lengths <= before.lengths).all() or near(before, after)


@given(batches(), costs, waits, waits)
def test_a_longer_wait_never_starts_drafting(
    any_batch: Batch, cost: StepCost, wait_s: float, more_s: float
) -> None:
    """What was not worth a short one is not worth a long one."""
    all_ours = replace(any_batch, wished=np.full_like(any_batch.wished, AUTO))
    before = decide(all_ours, cost, wait_s)
    after = decide(all_ours, cost, wait_s + more_s)
    assert before.drafts or not after.drafts


@given(batches(), costs, waits, pressures, pressures)
def test_pressure_never_lengthens_a_draft(
    any_batch: Batch, cost: StepCost, wait_s: float, one: int, other: int
) -> None:
    """Not that of any sequence, at any of its levels."""
    less = decide(any_batch, cost, wait_s, min(one, other))
    more = decide(any_batch, cost, wait_s, max(one, other))
    assert (more.lengths <= less.lengths).all()


def near(one: Decision, other: Decision) -> bool:
    """Whether a tie was broken the other way by rounding: both have the same worth."""
    return rate_of(one) == pytest.approx(rate_of(other), rel=1e-9)
