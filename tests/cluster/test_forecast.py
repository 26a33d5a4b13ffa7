"""How long requests would wait, and how many verifiers that takes: worked numbers and laws."""

import math
import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.forecast import (
    Demand,
    Targets,
    Work,
    broken,
    predict,
    verifiers_needed,
)
from cluster.queueing import wait_quantile_s, wait_s

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
    assert utilization * wait_s(1.0, 1.0 - utilization) == pytest.approx(services, rel=0.005)


@pytest.mark.parametrize("utilization", [0.3, 0.8, 0.95])
def test_the_tail_of_the_wait_is_that_of_mm1(utilization: float) -> None:
    """Of the requests, 5 % wait longer than `P(W > t) = rho exp(-t (1 - rho))` says."""
    waited_s = wait_quantile_s(utilization, 1.0, 1.0 - utilization, 0.95)
    assert utilization * math.exp(-waited_s * (1 - utilization)) == pytest.approx(0.05, rel=1e-6)


def test_a_full_queue_never_ends() -> None:
    """From a utilization of 1 on no wait is finite."""
    assert math.isinf(wait_s(1.0, 0.0))
    assert math.isinf(wait_quantile_s(1.0, 0.5, 0.0, 0.95))
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


def waits_of_a_queue(rates: tuple[float, float], service_s: float) -> tuple[list[float], ...]:
    """Waits by class in a simulated queue: exponential services, the first class served first."""
    rng = random.Random(7)
    arrivals = [deque[float](), deque[float]()]
    for waiting, rate in zip(arrivals, rates, strict=True):
        at_s = 0.0
        while at_s < 100_000.0:
            at_s += rng.expovariate(rate)
            waiting.append(at_s)
    waits: tuple[list[float], ...] = ([], [])
    now_s = 0.0
    while any(arrivals):
        here = [k for k in (0, 1) if arrivals[k] and arrivals[k][0] <= now_s]
        if not here:
            now_s = min(waiting[0] for waiting in arrivals if waiting)
            continue
        waits[here[0]].append(now_s - arrivals[here[0]].popleft())
        now_s += rng.expovariate(1.0 / service_s)
    return waits


@pytest.mark.parametrize("rates", [(0.3, 0.5), (0.6, 0.2), (0.1, 0.7)])
def test_those_who_can_wait_wait_for_the_others(rates: tuple[float, float]) -> None:
    """Against a simulated queue of two classes: what 95 % wait less than, within a quarter."""
    work = Work(step_s=1e-9, sequence_s=0.0, token_s=0.001)
    batch = Demand(rate=rates[1], prompt=1000, output=1)
    demand = Demand(rate=sum(rates), prompt=1000, output=1, batch=batch)
    seen = predict(work, demand, 1, attainment=0.9)
    own_s = 2.0  # a mean prompt, and the spread of lengths
    simulated = [sorted(waits)[int(0.95 * len(waits))] for waits in waits_of_a_queue(rates, 1.0)]
    assert seen.ttft_s - own_s == pytest.approx(simulated[0], rel=0.25)
    assert seen.batch_ttft_s - own_s == pytest.approx(simulated[1], rel=0.25)


BOTH = replace(DEMAND, batch=Demand(rate=2.0, prompt=3000, output=211))
CLASSES = replace(TARGETS, batch_ttft_s=60.0, batch_tpot_s=0.5)


def test_work_that_can_wait_needs_fewer_verifiers() -> None:
    """All of it urgent: as ever. A part that can wait: fewer; all of it: by its own targets."""
    tight = replace(CLASSES, ttft_s=1.2, utilization=0.95)
    urgent = verifiers_needed(WORK, DEMAND, tight, 1, MOST)
    mixed = verifiers_needed(WORK, BOTH, tight, 1, MOST)
    patient = verifiers_needed(WORK, replace(DEMAND, batch=DEMAND), tight, 1, MOST)
    assert patient.verifiers < mixed.verifiers < urgent.verifiers
    assert urgent.limit == "ttft"


def test_late_work_that_can_wait_asks_for_more_too() -> None:
    """Where its own target breaks first, it is what decides."""
    need = verifiers_needed(WORK, BOTH, replace(CLASSES, ttft_s=60.0, batch_ttft_s=3.0), 1, MOST)
    assert need.limit == "batch_ttft"
    assert need.prediction.ttft_s < need.prediction.batch_ttft_s <= 3.0


def test_time_per_token_is_that_of_the_strictest_who_ask() -> None:
    """Steps are shared: the lax target counts only where nobody else asks."""
    strict = replace(CLASSES, tpot_s=0.04, ttft_s=60.0)
    mixed = verifiers_needed(WORK, BOTH, strict, 1, MOST)
    alone = verifiers_needed(WORK, replace(BOTH, batch=BOTH), strict, 1, MOST)
    assert mixed.limit == "tpot"
    assert alone.verifiers < mixed.verifiers


@given(demands, st.floats(0, 1), st.floats(0, 32_000), st.floats(0, 20))
def test_the_parts_of_a_demand_are_the_whole(demand, part, prompt, spread) -> None:
    """What is urgent and what can wait add up, also at another rate."""
    rate = part * demand.rate
    batch = Demand(rate=rate, prompt=min(prompt, demand.prompt), output=1, spread=spread)
    both = replace(demand, batch=batch).at(demand.rate * 3)
    assert both.urgent.rate <= both.rate
    assert both.batch.rate == pytest.approx(3 * rate)
    tokens = both.urgent.rate * both.urgent.prompt + both.batch.rate * both.batch.prompt
    if both.urgent.rate:
        assert tokens == pytest.approx(both.rate * both.prompt, rel=1e-6, abs=1e-6)


def test_work_that_can_wait_is_worked_off_last() -> None:
    """Of what waits, the others' goes first."""
    late = replace(BOTH, backlog=50_000, batch=replace(BOTH.batch, backlog=20_000))
    soon = late.left_after(0.5, WORK, 13)
    assert soon.batch.backlog == 20_000
    assert soon.urgent.backlog < 30_000
    assert late.left_after(100.0, WORK, 13).batch.backlog == 0
