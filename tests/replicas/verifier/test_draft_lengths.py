"""Draft lengths in a closed loop, over a simulator of an engine's steps.

Nothing here is a measurement: simulated tokens a simulated second compare ways to choose.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from simulated_engine import SimulatedEngine, Traffic, params

from replicas.verifier.draft_costs import AUTO
from replicas.verifier.draft_lengths import DraftLengths, GovernorSettings
from replicas.verifier.request_speculation import class_lengths
from replicas.verifier.step_cost import StepCost, StepLoad

K = 4
CPU = StepCost(0.012, 0.002, 1e-7, 2e-7)
GPU = StepCost(0.012, 1e-4, 1e-9, 1e-9, shapes=(1, 2, 4, *range(8, 257, 8)))
WAIT_S = 0.0005
PROBE_SHARE = 0.01

RIGHT = Traffic(lambda _: 0.85)
MIXED = Traffic(lambda _: 0.45, found=0.5)
WRONG = Traffic(lambda _: 0.0)
HALF = Traffic(lambda i: 0.9 * (i % 2))
LONG = Traffic(lambda _: 0.6, context=6000)


def engine(cost: StepCost = CPU, wait_s: float = WAIT_S, **settings: Any) -> SimulatedEngine:
    told = {"mode": "auto", "probe_share": PROBE_SHARE} | settings
    lengths = DraftLengths(GovernorSettings(K, **told), cost.shapes)
    return SimulatedEngine(lengths, cost, K, wait_s)


def mean_length(one: SimulatedEngine) -> float:
    return one.lengths.report().mean_length


@pytest.mark.parametrize("cost", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    "traffic", [RIGHT, MIXED, WRONG, HALF, LONG], ids=["right", "mixed", "wrong", "half", "long"]
)
def test_it_is_never_slower_than_the_better_of_none_and_fixed(
    cost: StepCost, rows: int, traffic: Traffic
) -> None:
    """By three per cent at most, once it has seen 300 steps; probing is in it."""

    def speed(mode: str) -> float:
        one = engine(cost, mode=mode)
        one.run(300, rows, traffic)
        return one.run(800, rows, traffic)

    assert speed("auto") >= 0.97 * max(speed("off"), speed("fixed"))


def test_half_right_and_half_wrong_drafts_beat_any_fixed_length() -> None:
    """As sequences of one step have lengths of their own."""
    fixed = [
        engine(of_class=(("interactive", length), ("batch", length))).run(1500, 8, HALF)
        for length in range(K + 1)
    ]
    assert engine().run(1500, 8, HALF) >= 1.05 * max(fixed)


@pytest.mark.parametrize("unsure", [0.0, 0.2])
def test_a_source_that_says_of_which_drafts_it_is_not_sure_saves_their_time(unsure: float) -> None:
    """Against the same drafts from one that says nothing, and which others are not cut for."""
    told = Traffic(lambda _: 0.9, unsure=unsure)
    untold = engine()
    untold.lengths._confidences.verified = lambda *_: None  # type: ignore[method-assign]
    one = engine()
    one.run(500, 8, told)
    untold.run(500, 8, told)
    assert one.run(2000, 8, told) >= 1.05 * untold.run(2000, 8, told)


def test_drafts_that_were_not_sure_and_become_right_are_verified_again() -> None:
    """What was learned of them fades."""
    wrong = Traffic(lambda _: 0.9, unsure=0.0)
    one, fresh = engine(), engine()
    one.run(1000, 4, wrong)
    right = Traffic(lambda _: 0.9, unsure=0.9)
    one.run(1500, 4, right)
    fresh.run(300, 4, right)
    assert one.run(500, 4, right) >= 0.97 * fresh.run(500, 4, right)


def test_load_that_rises_and_falls_meets_no_cliff() -> None:
    """From step to step of the load, up and down, throughput never falls by more than three per
    cent where without drafts it would rise.
    """
    one = engine()
    up = [one.run(300, rows, RIGHT) for rows in range(1, 33, 2)]
    down = [one.run(300, rows, RIGHT) for rows in range(31, 0, -2)]
    for speeds in (up, down[::-1]):
        for fewer, more in pairwise(speeds):
            assert more >= 0.97 * fewer
    # The same load is as fast on the way down as on the way up.
    for rising, falling in zip(up[1:], down[::-1][1:], strict=True):
        assert falling == pytest.approx(rising, rel=0.08)


def test_drafts_that_are_always_wrong_go_to_nothing_but_probes() -> None:
    """Of which all together cost no more than their share of the time."""
    one, plain = engine(), engine(mode="off")
    one.run(300, 4, WRONG)
    before = one.drafted
    assert one.run(3000, 4, WRONG) >= (1 - 1.5 * PROBE_SHARE) * plain.run(3000, 4, WRONG)
    assert one.drafted - before < 0.03 * 3000 * 4
    assert one.lengths.report().probes > 0


def test_without_probes_nothing_is_tried_again() -> None:
    """A share of zero is one."""
    one = engine(probe_share=0)
    one.run(600, 4, WRONG)
    before = one.drafted
    one.run(600, 1, Traffic(lambda _: 0.0, output_tokens=10**6))
    assert one.lengths.report().probes == 0
    assert one.drafted - before < 60


@pytest.mark.parametrize(("before", "after"), [(WRONG, RIGHT), (RIGHT, WRONG), (WRONG, HALF)])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_change_of_traffic_is_found_within_a_thousand_steps(
    before: Traffic, after: Traffic, rows: int
) -> None:
    """Twenty seconds of steps of 20 ms; from then on it is as good as one that never knew else."""
    changed, fresh = engine(), engine()
    changed.run(3000, rows, before)
    changed.run(1000, rows, after)
    fresh.run(1000, rows, after)
    assert changed.run(2000, rows, after) >= 0.93 * fresh.run(2000, rows, after)


def test_one_long_request_that_changes_is_followed() -> None:
    """A single sequence whose drafts turn from wrong to right is drafted for again."""
    one = engine()
    one.run(2000, 1, Traffic(lambda _: 0.0, output_tokens=10**6))
    assert mean_length(one) < 0.2
    one.run(600, 1, Traffic(lambda _: 0.9, output_tokens=10**6))
    assert mean_length(one) > 2


def test_a_slow_draft_worker_is_given_up_and_found_again() -> None:
    """While a wait costs more than drafts bring; not for longer than it does."""
    one = engine(wait_s=0.06)
    one.run(400, 1, RIGHT)
    asked = one.asked_steps
    one.run(1000, 1, RIGHT)
    assert one.asked_steps - asked < 60
    one.wait_s = WAIT_S
    one.run(2500, 1, RIGHT)
    assert mean_length(one) > 2


def with_a_model(
    draft_s: float, lookahead: bool, rate: float, rows: int, **settings: Any
) -> SimulatedEngine:
    """Steps with a draft model that takes `draft_s` a token, when it has learned. What nobody
    waits for is learned of by probes, one in 40 steps here.
    """
    one = engine(wait_s=0.0, **settings)
    one.draft_s, one.lookahead = draft_s, lookahead
    one.run(150 if lookahead else 300, rows, Traffic(lambda _: rate, source="worker:model"))
    return one


def fixed_at(length: int) -> dict[str, Any]:
    return {"of_class": (("interactive", length), ("batch", length))}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("rate", [0.95, 0.8, 0.6])
@pytest.mark.parametrize("draft_s", [0.001, 0.004, 0.008])
@pytest.mark.parametrize("lookahead", [False, True])
def test_a_draft_model_that_takes_its_time_is_waited_for_as_long_as_pays(
    draft_s: float, rate: float, rows: int, lookahead: bool
) -> None:
    """Never much slower than the best fixed length. Where the model goes on while a step runs,
    and a step is a few of its tokens, several sequences are faster than with any: nobody waits
    for those that must begin anew.
    """
    traffic = Traffic(lambda _: rate, source="worker:model")

    def speed(**settings: Any) -> float:
        one = with_a_model(draft_s, lookahead, rate, rows, **settings)
        return one.run(500 if lookahead else 1500, rows, traffic)

    least = 0.96 if lookahead else 0.95
    if lookahead and rows > 1 and draft_s > 0.001:
        least = 1.02
    assert speed() >= least * max(speed(**fixed_at(length)) for length in range(K + 1))


def test_a_model_that_was_not_waited_for_is_tried_again() -> None:
    """A model that was always wrong becomes right, and never goes on by itself: without a probe
    that is waited for nobody would know.
    """
    one = with_a_model(0.004, False, 0.0, 1)
    right = Traffic(lambda _: 0.9, source="worker:model")
    one.run(1500, 1, right)
    best = max(
        with_a_model(0.004, False, 0.9, 1, **fixed_at(length)).run(500, 1, right)
        for length in range(K + 1)
    )
    assert one.run(500, 1, right) >= 0.9 * best
    assert one.lengths.report().probes > 0


def test_a_draft_model_reads_the_next_prompt_though_the_last_answer_is_at_its_end() -> None:
    """The last step of an answer has room for no draft; that says nothing of the next one."""
    one = with_a_model(0.001, True, 0.95, 1)
    assert one.lengths.first(None) == K
    assert one.lengths.choose(["last"], [None], [300], [0]) == [0]
    assert one.lengths.first(None) == K


def test_what_a_request_and_its_class_say_is_obeyed() -> None:
    """A request before its class; an unknown class is the interactive one."""
    lengths = DraftLengths(
        GovernorSettings(K, "auto", class_lengths({"interactive": "auto", "batch": 1}))
    )

    def chosen(**xargs: Any) -> int:
        request_id = str(xargs)
        return lengths.choose([request_id], [params(**xargs)], [100], [K])[0]

    assert chosen(paceline_speculation="off") == 0
    assert chosen(paceline_speculation=0) == 0
    assert chosen(paceline_speculation=3) == 3
    assert chosen(paceline_class="batch") == 1
    assert chosen(paceline_class="batch", paceline_speculation=2) == 2
    assert chosen(paceline_class="nobody's") == chosen() == chosen(paceline_speculation="auto")


@pytest.mark.parametrize(("mode", "length"), [("off", 0), ("fixed", K)])
def test_without_a_governor_lengths_are_what_the_config_says(mode: str, length: int) -> None:
    """`off` drafts nothing whatever is asked for; `fixed` drafts where nothing else is asked."""
    lengths = DraftLengths(GovernorSettings(K, mode))  # type: ignore[arg-type]
    wishes: list[Callable[[], Any]] = [lambda: None, lambda: params(paceline_speculation=2)]
    ids = ["a", "b"]
    chosen = lengths.choose(ids, [wish() for wish in wishes], [100, 100], [K, K])
    assert chosen == [length, min(length, 2)]


def test_pressure_stops_drafts_from_the_next_step_on() -> None:
    """And probes with them."""
    one = engine()
    one.run(50, 1, RIGHT)
    one.lengths.pressure = 3
    one.run(1, 1, RIGHT)
    asked = one.asked_steps
    one.run(200, 1, RIGHT)
    assert one.asked_steps == asked
    assert one.lengths.report().reason == "pressure"


def test_it_tells_where_drafting_is_and_why() -> None:
    """Lengths, expected and real tokens, acceptance, costs and the model's error."""
    one = engine()
    one.run(1000, 2, RIGHT)
    report = one.lengths.report()
    assert len(report.lengths) == K + 1
    assert 1900 < sum(report.lengths) <= 2000
    assert report.expected_tokens == pytest.approx(report.real_tokens, rel=0.05)
    assert report.mean_rows == pytest.approx(2, abs=0.2)
    assert report.acceptance[0] == pytest.approx(0.85, abs=0.12)
    assert report.wait_s == pytest.approx(WAIT_S, rel=0.3)
    assert report.step.error < 0.1
    assert report.reason in ("pays", "longest")
    assert report.gain > report.gain_needed > 0


def test_requests_that_are_over_leave_nothing_behind() -> None:
    """Nor does one that was never known do any harm."""
    lengths = DraftLengths(GovernorSettings(K, "auto"))
    lengths.choose(["a"], [None], [100], [K])
    lengths.forget(["a", "b"])
    lengths.drafted("a", "worker", 0.5, 3)
    lengths.settled("a", 2, 3)
    assert lengths._requests == {}
    assert lengths.choose([], [], [], []) == []
    lengths.stepped(StepLoad(0), 0.0)
    assert lengths.model.samples == 0
    assert AUTO < 0
