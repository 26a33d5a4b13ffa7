"""The planner reproduces the worked numbers of the paceline theory notes, and plans by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planner import (
    Profile,
    Round,
    best_length,
    break_even,
    combined_speedup,
    drafting_budget_s,
    equal_acceptance,
    parallel_round_s,
    payback_tokens,
    plan,
    round_of,
    schedule,
    serial_round_s,
    time_per_token,
)
from replicas.verifier.acceptance import expected_tokens
from replicas.verifier.step_cost import StepCost, StepLoad

PLAIN_S, QUERY_S = 26.26e-3, 0.1e-3


@pytest.mark.parametrize(
    ("rate", "length", "tokens"), [(0.25, 4, 1.33), (0.75, 4, 3.05), (0.8, 4, 3.36)]
)
def test_tokens_per_round(rate: float, length: int, tokens: float) -> None:
    """Equal acceptance, in closed form and added up place by place."""
    assert equal_acceptance(rate, length) == pytest.approx(tokens, abs=0.005)
    assert expected_tokens([rate] * length) == pytest.approx(equal_acceptance(rate, length))


def test_tokens_per_round_by_place() -> None:
    """`1 + sum_j prod_{i<=j} a_i`; and a draft that is always right brings all of it."""
    assert expected_tokens([0.9, 0.5, 0.2]) == pytest.approx(1 + 0.9 + 0.45 + 0.09)
    assert equal_acceptance(1.0, 4) == 5


def test_time_per_token_is_total_time_over_total_tokens() -> None:
    """Two rounds of 1.5 ms giving 1 and 5 tokens: 0.5 ms, not 0.9."""
    rounds = [Round(1, 1.5e-3), Round(5, 1.5e-3)]
    assert time_per_token(rounds) == pytest.approx(0.5e-3)
    assert sum(r.token_s for r in rounds) / 2 == pytest.approx(0.9e-3)


@pytest.mark.parametrize(("rate", "token_ms", "budget_ms"), [(0.25, 19.8, 8.7), (0.75, 8.64, 53.9)])
def test_time_per_token_and_the_budget_for_drafting(
    rate: float, token_ms: float, budget_ms: float
) -> None:
    """Decode takes 26.26 ms a round, a query for four drafts 0.1 ms."""
    tokens = equal_acceptance(rate, 4)
    token_s = Round(tokens, PLAIN_S + QUERY_S).token_s
    assert token_s * 1e3 == pytest.approx(token_ms, abs=0.05)
    assert drafting_budget_s(tokens, PLAIN_S) * 1e3 == pytest.approx(budget_ms, abs=0.1)
    profile = Profile(StepCost(PLAIN_S, 0.0), (rate,) * 4, wait_s=QUERY_S)
    assert round_of(profile, 1, 4).token_s == pytest.approx(token_s)


def test_preparation_pays_back_after_so_many_tokens() -> None:
    """2 s of index building at 17.6 ms a token: 114 tokens; a request of 256 takes 4.22 s."""
    assert payback_tokens(2.0, 17.6e-3) == pytest.approx(114, abs=0.5)
    assert pytest.approx(6.72, abs=0.005) == 256 * PLAIN_S
    assert pytest.approx(4.22, abs=0.005) == 2.0 + 256 * (PLAIN_S - 17.6e-3)


def test_parallel_drafts_may_be_slower_than_serial_ones() -> None:
    """Draft forward 3.57 ms, verify 26.26 ms: what counts is how many are accepted."""
    serial = Round(3, serial_round_s(4, 3.57e-3, PLAIN_S)).token_s
    parallel = [Round(tokens, parallel_round_s(3.57e-3, PLAIN_S)).token_s for tokens in (3, 2)]
    assert serial * 1e3 == pytest.approx(13.5, abs=0.05)
    assert parallel[0] * 1e3 == pytest.approx(9.9, abs=0.05)
    assert parallel[1] * 1e3 == pytest.approx(14.9, abs=0.05)
    assert parallel[0] < serial < parallel[1]


@given(st.floats(0.01, 0.99), st.floats(1e-4, 0.02))
def test_the_best_length_is_where_the_marginal_rule_ends(rate: float, row_s: float) -> None:
    """On a straight cost: one token more is worth it while dT/dN < T/N."""
    profile = Profile(StepCost(0.02, row_s), (rate,) * 8)
    marginal = 0
    while marginal < 8:
        now = round_of(profile, 1, marginal)
        if row_s / rate ** (marginal + 1) >= now.token_s:
            break
        marginal += 1
    choice = best_length(profile, 1)
    same = round_of(profile, 1, marginal).token_s
    assert choice.drafted.token_s == pytest.approx(same, rel=0.011)
    assert choice.length <= marginal


def test_execution_shapes_make_steps() -> None:
    """4 and 5 rows both run as 8, 9 as 16: the last length of a shape is the best or none is."""
    cost = StepCost(0.004, 0.002, shapes=(1, 2, 4, 8, 16))
    at = [cost.seconds(round_load) for round_load in (_rows(4), _rows(5), _rows(8), _rows(9))]
    assert at[1] == at[2]
    assert at[3] == cost.seconds(_rows(16))
    profile = Profile(cost, (0.9,) * 4)
    assert best_length(profile, 1).length == 3
    assert best_length(profile, 2).length == 3


def _rows(rows: int) -> StepLoad:
    return StepLoad(rows)


@pytest.mark.parametrize(
    ("target", "draft", "speedup", "token_ms"),
    [(1, 1, 2.40, 4.17), (2, 2, 4.80, 2.08), (2, 1, 3.73, 2.68), (1, 2, 2.80, 3.57),
     (2, 1.5, 4.38, 2.28)],
)  # fmt: skip
def test_quantization_and_speculation_together(
    target: float, draft: float, speedup: float, token_ms: float
) -> None:
    """T_p = 10 ms, T_q = 1 ms, K = 4, E[N] = 3.36."""
    found = combined_speedup(3.36, 4, 10.0, target, draft)
    assert found == pytest.approx(speedup, abs=0.005)
    assert 10 / found == pytest.approx(token_ms, abs=0.005)


def test_a_large_target_needs_its_draft_quantized_too() -> None:
    """70B: T_p = 100 ms, T_q = 8 ms, E[N] = 3.4, K = 5; W4A16 makes both twice as fast."""
    assert combined_speedup(3.4, 5, 100 / 8) == pytest.approx(2.43, abs=0.005)
    both = combined_speedup(3.4, 5, 100 / 8, 2, 2)
    assert both == pytest.approx(4.86, abs=0.005)
    assert 100 / both == pytest.approx(20.6, abs=0.05)
    assert combined_speedup(3.4, 5, 100 / 8, 2, 1) == pytest.approx(3.78, abs=0.005)


def test_draft_quantization_matters_most_where_drafts_are_right() -> None:
    """Over a in 0.6 to 0.9, what q_d = 2 brings over 1, in tokens a second."""
    brought = [
        combined_speedup(equal_acceptance(rate, 4), 4, 10.0, 2, 2)
        - combined_speedup(equal_acceptance(rate, 4), 4, 10.0, 2, 1)
        for rate in (0.6, 0.7, 0.8, 0.9)
    ]
    assert brought == sorted(brought)


STEEP = Profile(StepCost(0.012, 0.002), (0.7, 0.65, 0.6, 0.5))


def test_drafts_pay_up_to_a_load() -> None:
    """From the break-even on no length does, and the schedule ends there."""
    even = break_even(STEEP, 4)
    assert even is not None
    assert best_length(STEEP, even - 1).length > 0
    assert best_length(STEEP, even).length == 0
    steps = schedule(STEEP, 4)
    assert steps[0][1] >= 2
    assert steps[-1] == (256, 0)
    assert [batch for batch, _ in steps] == sorted(batch for batch, _ in steps)
    assert [length for _, length in steps] == sorted((k for _, k in steps), reverse=True)
    assert len(steps) == len({length for _, length in steps})


def test_there_is_not_always_a_break_even() -> None:
    """Rows that cost nothing are drafted at every load; drafts that are wrong at none."""
    assert break_even(Profile(StepCost(0.02, 1e-6), (0.8,)), 4) is None
    assert break_even(Profile(StepCost(0.02, 0.01), (0.05,)), 4) == 1
    assert schedule(Profile(StepCost(0.02, 0.01), (0.05,)), 4) == ((256, 0),)


def test_a_plan_tells_its_numbers() -> None:
    """Speed-ups against no drafts at each load, never below one."""
    made = plan(STEEP, 4, (1, 4, 16))
    assert [choice.sequences for choice in made.choices] == [1, 4, 16]
    assert made.choices[0].speedup > 1.5
    assert all(choice.speedup >= 1 for choice in made.choices)


def test_long_contexts_and_waits_and_drafts_that_are_seldom_found_shorten_drafts() -> None:
    """Each on its own."""
    base = Profile(StepCost(0.012, 0.001, 1e-7, 1e-6), (0.6,) * 4, context=100)
    assert best_length(base, 2).length > 0
    long = Profile(base.cost, base.acceptance, context=20_000)
    assert best_length(long, 2).length < best_length(base, 2).length
    assert best_length(Profile(base.cost, base.acceptance, wait_s=0.05), 2).length == 0
    rare = Profile(base.cost, base.acceptance, found=0.05, wait_s=0.002)
    assert best_length(rare, 2).length == 0
