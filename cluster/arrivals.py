"""What is asked for, from counts of requests: rate, its noise, and where it is going.

Counts come in at times, as they are reported. A rate of arrivals
is known to `sqrt(n) / window` (Poisson), so a forecast adds that much, and follows a trend only
as far as it stands out of the noise.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

NOISE: Final = 1.0
"""Standard deviations of a count that are planned for."""
TREND_NOISE: Final = 2.5
"""Standard deviations below which the difference of two windows is no trend."""


@dataclass(frozen=True)
class RateForecast:
    """Requests a second.

    Attributes:
        rate: Over the window.
        noise: One standard deviation of it.
        trend: By which it grows in a second; 0 where it doesn't stand out of the noise.
        expected: After the horizon, with the noise that is planned for.
    """

    rate: float
    noise: float
    trend: float
    expected: float


class Arrivals:
    """Counts of the latest window, and of the one before, from which a trend is seen.

    Args:
        window_s: How long a window is.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counts: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None

    def add(self, count: float, now_s: float) -> None:
        """So many requests came since the last call."""
        if self._since_s is None:
            self._since_s = now_s
        self._counts.append((now_s, count))
        while self._counts and self._counts[0][0] <= now_s - 2 * self._window_s:
            self._counts.popleft()

    def known_s(self, now_s: float) -> float:
        """Time that a rate is taken over, seconds; at most the window."""
        return 0.0 if self._since_s is None else min(now_s - self._since_s, self._window_s)

    def forecast(self, horizon_s: float, now_s: float) -> RateForecast:
        """The rate that is expected in `horizon_s`."""
        known_s = self.known_s(now_s)
        if known_s <= 0 or self._since_s is None:
            return RateForecast(0.0, 0.0, 0.0, 0.0)
        window_s = self._window_s
        late = sum(count for at_s, count in self._counts if at_s > now_s - window_s)
        early = sum(count for at_s, count in self._counts if at_s <= now_s - window_s)
        rate, noise = late / known_s, math.sqrt(late + 1.0) / known_s
        early_s = min(now_s - self._since_s - window_s, window_s)
        trend = 0.0
        if early_s >= window_s / 2:
            difference = rate - early / early_s
            chance = TREND_NOISE * math.hypot(noise, math.sqrt(early + 1.0) / early_s)
            stands_out = max(0.0, abs(difference) - chance)
            trend = math.copysign(stands_out, difference) / ((window_s + early_s) / 2)
        ahead_s = known_s / 2 + horizon_s
        return RateForecast(rate, noise, trend, rate + max(0.0, trend) * ahead_s + NOISE * noise)
