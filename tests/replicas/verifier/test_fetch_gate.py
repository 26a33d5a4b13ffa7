"""Fetch or compute: whichever is expected to be sooner."""

from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.fading_line import FadingLine, Line
from replicas.verifier.fetch_gate import (
    PROBE_EVERY,
    QUICK_S,
    GateSettings,
    Rates,
    fetches,
    look_up,
    saved_s,
)

SETTINGS = GateSettings(always=False, shortest_tokens=256, wait_max_s=1.0)
ALWAYS = GateSettings(always=True, shortest_tokens=256, wait_max_s=1.0)
COMPUTE = Line(0.05, 0.001)
FAST, SLOW = Line(0.01, 0.0002), Line(0.01, 0.002)
lines = st.builds(Line, st.floats(0, 1), st.floats(1e-7, 0.01))
rates = st.builds(
    Rates,
    compute=st.none() | lines,
    load=st.none() | lines,
    tiers=st.lists(lines, max_size=3).map(tuple),
    is_any_away=st.booleans(),
)


def test_a_short_prompt_is_not_looked_up() -> None:
    """Whatever was measured, and even where everything is fetched."""
    for settings in (SETTINGS, ALWAYS):
        assert not look_up(settings, 255, Rates(COMPUTE, FAST), 0).wanted
        assert look_up(settings, 256, Rates(COMPUTE, FAST), 0).wanted


def test_what_computes_faster_than_it_loads_is_not_looked_up() -> None:
    """Except now and then, to see a change."""
    rates = Rates(COMPUTE, SLOW)
    decided = [look_up(SETTINGS, 1000, rates, count) for count in range(2 * PROBE_EVERY)]
    assert sum(one.wanted for one in decided) == 2
    assert {one.reason for one in decided} == {"slower", "probe"}
    assert look_up(ALWAYS, 1000, rates, 0).wanted
    assert fetches(ALWAYS, 1000, rates, 0)
    assert not fetches(SETTINGS, 1000, rates, 0)


def test_a_tier_that_does_not_answer_is_not_waited_for() -> None:
    """Nor is one that was never measured before it went; one that pays still is."""
    for tiers, wait_s in (((), QUICK_S), ((SLOW,), QUICK_S), ((FAST,), 0.4)):
        decided = look_up(SETTINGS, 1000, Rates(COMPUTE, FAST, tiers, is_any_away=True), 0)
        assert decided.wait_s >= wait_s
        assert (decided.wait_s == QUICK_S) is (wait_s == QUICK_S)


def test_a_load_has_a_length_from_which_on_it_pays() -> None:
    """A fixed price, and less for each token than computing."""
    rates = Rates(Line(0.0, 0.001), Line(0.5, 0.0002))
    assert not fetches(SETTINGS, 600, rates, 0)
    assert fetches(SETTINGS, 650, rates, 0)


def test_a_slow_tier_is_not_waited_for() -> None:
    """What lies in memory is there at once; the rest comes for the next one."""
    patient = look_up(SETTINGS, 1000, Rates(COMPUTE, FAST, (Line(0.01, 0.0003),)), 0)
    quick = look_up(SETTINGS, 1000, Rates(COMPUTE, FAST, (SLOW,)), 0)
    assert patient.wait_s > 0.3
    assert (quick.wait_s, quick.reason) == (QUICK_S, "memory")


@given(st.integers(1, 100_000), rates, st.integers(0, 200))
def test_a_wait_is_bounded_by_the_config_and_by_what_it_may_save(
    tokens: int, measured: Rates, count: int
) -> None:
    """Nobody waits longer than computing would have taken, but for a glance."""
    decided = look_up(SETTINGS, tokens, measured, count)
    assert 0 <= decided.wait_s <= SETTINGS.wait_max_s
    saved = saved_s(tokens, measured)
    if saved is not None:
        assert decided.wait_s <= max(saved, QUICK_S)


def test_nothing_measured_means_fetch_and_measure() -> None:
    """A first request tries."""
    assert look_up(SETTINGS, 1000, Rates(), 0).reason == "unknown"
    assert fetches(SETTINGS, 1000, Rates(), 0)


def test_a_line_follows_what_is_seen() -> None:
    """Base and slope, and a new slope after a change."""
    line = FadingLine()
    assert line.line() is None
    for tokens in (100, 400, 200, 800):
        line.note(tokens, 0.1 + 0.002 * tokens)
    found = line.line()
    assert found is not None
    assert abs(found.base_s - 0.1) < 1e-6
    assert abs(found.s_per_token - 0.002) < 1e-9
    for _ in range(100):
        for tokens in (100, 400, 200, 800):
            line.note(tokens, 0.004 * tokens)
    changed = line.line()
    assert changed is not None
    assert abs(changed.s_per_token - 0.004) < 1e-4
