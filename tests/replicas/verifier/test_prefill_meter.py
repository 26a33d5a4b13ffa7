"""How much prefill is waiting, and what it costs, from starts and first tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.prefill_meter import PrefillCost, PrefillMeter


def test_prefills_of_several_lengths_show_base_and_slope() -> None:
    """Half a second, and a millisecond for each token."""
    meter = PrefillMeter()
    now_s = 0.0
    for number in range(40):
        tokens = 100 * (1 + number % 7)
        meter.started(str(number), tokens, now_s)
        now_s += 0.5 + 0.001 * tokens
        meter.first_token(str(number), tokens, 0, now_s)
        now_s += 1.0
    cost = meter.cost()
    assert cost.base_s == pytest.approx(0.5)
    assert cost.s_per_token == pytest.approx(0.001)


def test_prefills_of_one_length_show_their_mean() -> None:
    """No line goes through one point."""
    meter = PrefillMeter()
    meter.started("a", 100, 0.0)
    meter.first_token("a", 100, 0, 0.2)
    assert meter.cost() == PrefillCost(0.0, pytest.approx(0.002))


def test_cached_tokens_are_not_computed() -> None:
    """And make the queue look shorter, in the usual part."""
    meter = PrefillMeter()
    for number in range(100):
        meter.started(str(number), 100, float(number))
        meter.first_token(str(number), 100, 90, number + 0.02)
    assert meter.cost().s_per_token == pytest.approx(0.002)
    meter.started("next", 1000, 200.0)
    assert meter.queued_tokens == pytest.approx(100, abs=2)


@given(
    st.lists(
        st.tuples(st.sampled_from("sfe"), st.sampled_from("abc"), st.integers(0, 500)), max_size=60
    )
)
def test_the_queue_is_empty_when_all_have_left(events: list[tuple[str, str, int]]) -> None:
    """In whatever order they start, answer and leave, some twice."""
    meter = PrefillMeter()
    for now_s, (kind, request, tokens) in enumerate(events):
        if kind == "s":
            meter.started(request, tokens, float(now_s))
        elif kind == "f":
            meter.first_token(request, tokens, tokens // 2, float(now_s))
        else:
            meter.ended(request)
        assert meter.queued_tokens >= 0
        assert meter.cost().s_per_token >= 0
    for request in "abc":
        meter.ended(request)
    assert meter.queued_tokens == 0


def test_nothing_measured_is_nothing_known() -> None:
    """Zeros."""
    assert PrefillMeter().cost() == PrefillCost()
