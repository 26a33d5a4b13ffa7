"""A rate of arrivals, its noise, and a trend that stands out of it."""

import random

import pytest

from cluster.arrivals import Arrivals


def fed(rate_at, seconds: int, window_s: float = 60.0, seed: int = 1) -> Arrivals:
    """Poisson-like counts, one a second."""
    rng, arrivals = random.Random(seed), Arrivals(window_s)
    for second in range(seconds):
        rate = rate_at(second)
        arrivals.add(sum(rng.random() < rate / 100 for _ in range(100)), float(second))
    return arrivals


def test_nothing_is_expected_of_nothing() -> None:
    """Without a count, and with zeros only, there is no rate beyond its noise."""
    assert Arrivals(60.0).forecast(60.0, 100.0).expected == 0.0
    calm = fed(lambda _: 0.0, 120).forecast(60.0, 119.0)
    assert (calm.rate, calm.trend) == (0.0, 0.0)
    assert calm.expected < 0.05


def test_a_steady_rate_is_expected_to_stay() -> None:
    """Noise is no trend, in most windows."""
    forecasts = [fed(lambda _: 6.0, 120, seed=s).forecast(60.0, 119.0) for s in range(50)]
    assert sum(f.trend == 0.0 for f in forecasts) >= 40
    assert sum(f.rate for f in forecasts) / 50 == pytest.approx(6.0, rel=0.05)


def test_a_steep_rise_is_followed_to_the_horizon() -> None:
    """A rate that grows by 0.2 a second is expected to go on, by more than the window's mean."""
    rising = fed(lambda s: 0.2 * s, 120).forecast(60.0, 119.0)
    assert 0.1 < rising.trend < 0.3
    assert rising.expected > 25.0 > rising.rate


def test_a_fall_is_not_followed() -> None:
    """What falls may stop falling: fewer are expected only once fewer come."""
    falling = fed(lambda s: max(0.0, 24.0 - 0.2 * s), 120).forecast(60.0, 119.0)
    assert falling.trend < 0
    assert falling.expected >= falling.rate


def test_the_past_is_forgotten_after_the_window() -> None:
    """A burst of two minutes ago is in no rate."""
    assert fed(lambda s: 20.0 if s < 60 else 1.0, 240).forecast(0.0, 239.0).rate < 2.0
