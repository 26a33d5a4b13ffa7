"""How long requests would wait, and how many verifiers that takes: worked numbers and laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.forecast import (
    Demand,
    Targets,
    Work,
    broken,
    mean_wait_s,
    predict,
    verifiers_needed,
    wait_quantile_s,
)

WORK = Work(step_s=0.03, sequence_s=0.001, token_s=0.0003, kv_tokens=200_000, max_sequences=256)
DEMAND = Demand(rate=5.5, prompt=1155, output=211, spread=1.0, context=1260)
TARGETS = Targets(ttft_s=2.0, tpot_s=0.1)
MOST = 64


@pytest.mark.parametrize(
    ("utilization", "services"),
    [(0.70, 2.33), (0.80, 4.0), (0.90, 9.0), (0.95, 19.0), (0.99, 99.0)],
)
def test_a_queue_grows_as_the_theory_notes_say(utilization: float, services: float) -> None:
    """M/M/1: `W_q = rho / (mu (1 - rho))`, in service times."""
    assert mean_wait_s(utilization, 1.0) == pytest.approx(services, rel=0.005)


@pytest.mark.parametrize("utilization", [0.3, 0.8, 0.95])
def test_the_tail_of_the_wait_is_that_of_mm1(utilization: float) -> None:
    """Of the requests, 5 % wait longer than `P(W > t) = rho exp(-t (1 - rho))` says."""
    wait_s = wait_quantile_s(utilization, 1.0, 0.95)
    assert utilization * math.exp(-wait_s * (1 - utilization)) == pytest.approx(0.05, rel=1e-6)


def test_a_full_queue_never_ends() -> None:
    """From a utilization of 1 on no wait is finite."""
    assert math.isinf(mean_wait_s(1.0, 1.0))
    assert math.isinf(wait_quantile_s(2.0, 0.5, 0.95))
    assert math.isinf(predict(WORK, DEMAND, 1).ttft_s)


def test_steps_stretch_with_the_work_beside_them() -> None:
    """At 5.5 requests/s on 5 verifiers a step of 30 ms takes 30 / (1 - u) ms."""
    seen = predict(WORK, DEMAND, 5)
    used = 1.1 * (0.001 * 211 + 0.0003 * 1155)
    assert seen.utilization == pytest.approx(used)
    # Little's law: sequences = rate * steps of a request * time of a step.
    assert seen.sequences == pytest.approx(1.1 * 211 * 0.03 / (1 - used))
    # With nobody's prompts in between, a token takes a step.
    alone = predict(WORK, Demand(rate=5.5, prompt=0, output=211), 5)
    assert alone.tpot_s == pytest.approx(0.03 / (1 - 1.1 * 0.001 * 211))
    assert seen.tpot_s > 0.03 / (1 - used)


def test_a_pool_that_accepts_three_tokens_a_step_needs_fewer() -> None:
    """E[N] divides the sequence steps and the time per token."""
    answers = Demand(rate=6.0, prompt=200, output=800, context=600)
    plain = verifiers_needed(WORK, answers, TARGETS, 1, MOST)
    accepting = Work(0.03, 0.001, 0.0003, 3.0, 200_000, 256)
    assert verifiers_needed(accepting, answers, TARGETS, 1, MOST).verifiers < plain.verifiers
    assert predict(accepting, DEMAND, 5).tpot_s < predict(WORK, DEMAND, 5).tpot_s / 2.9


@pytest.mark.parametrize(
    ("work", "demand", "targets", "limit"),
    [
        (WORK, DEMAND, Targets(2.0, 0.04), "tpot"),
        (WORK, DEMAND, Targets(1.5, 1.0), "ttft"),
        (WORK, DEMAND, Targets(60.0, 10.0, utilization=0.3), "utilization"),
        (Work(0.03, 0.001, 0.0003, 1.0, 5_000, 256), DEMAND, Targets(60.0, 10.0), "kv"),
        (Work(0.03, 0.001, 0.0003, 1.0, 0, 4), DEMAND, Targets(60.0, 10.0), "sequences"),
        (WORK, Demand(0.1, 100, 50), TARGETS, "nothing"),
    ],
)
def test_the_need_names_what_one_fewer_would_break(work, demand, targets, limit) -> None:
    """Each limit can be the one that decides."""
    need = verifiers_needed(work, demand, targets, 1, MOST)
    assert need.limit == limit
    assert broken(need.prediction, work, targets) == "nothing"
    if need.verifiers > 1:
        fewer = predict(work, demand, need.verifiers - 1)
        assert broken(fewer, work, targets) == limit


def test_what_no_number_would_meet_asks_for_no_more() -> None:
    """A step takes 30 ms: a target of 1 ms a token is no reason to start all there may be."""
    need = verifiers_needed(WORK, Demand(0.5, 500, 50), Targets(2.0, 0.001), 1, MOST)
    assert need.verifiers < 5


def test_a_backlog_asks_for_more_unless_it_will_be_gone() -> None:
    """What those that run can do until a new one is there is taken off."""
    late = Demand(5.5, 1155, 211, 1.0, 1260, backlog=60_000)
    calm = verifiers_needed(WORK, DEMAND, TARGETS, 1, MOST).verifiers
    assert verifiers_needed(WORK, late, TARGETS, 1, MOST).verifiers > calm
    assert late.left_after(60.0, WORK, 5).backlog == 0.0
    assert 0 < late.left_after(5.0, WORK, 4).backlog < 60_000


works = st.builds(
    Work,
    step_s=st.floats(1e-4, 0.5),
    sequence_s=st.floats(0, 0.05),
    token_s=st.floats(0, 0.01),
    tokens_per_step=st.floats(1, 6),
    kv_tokens=st.floats(0, 1e6),
    max_sequences=st.floats(0, 1024),
)
demands = st.builds(
    Demand,
    rate=st.floats(0, 200),
    prompt=st.floats(0, 32_000),
    output=st.floats(0, 4_000),
    spread=st.floats(0, 20),
    context=st.floats(0, 40_000),
    backlog=st.floats(0, 1e6),
)


@given(works, demands, st.integers(1, 4), st.integers(4, 40))
def test_the_need_is_within_bounds_and_grows_with_the_rate(work, demand, least, most) -> None:
    """Whatever is asked, between the fewest and the most, and never fewer for more requests."""
    need = verifiers_needed(work, demand, TARGETS, least, most)
    more = verifiers_needed(work, demand.at(demand.rate * 1.5), TARGETS, least, most)
    assert least <= need.verifiers <= more.verifiers <= most


@given(works, demands, st.integers(1, 40))
def test_one_more_verifier_never_makes_it_slower(work, demand, verifiers) -> None:
    """Predictions fall with the number of verifiers."""
    few, many = (predict(work, demand, count) for count in (verifiers, verifiers + 1))
    assert many.utilization <= few.utilization
    assert many.tpot_s <= few.tpot_s
    assert many.ttft_s <= few.ttft_s * (1 + 1e-9)
