"""What something costs by its size, learned from pairs of (size, seconds), the past fading:

seconds = base_s + s_per_token * tokens        least squares
"""

from dataclasses import dataclass
from typing import Final

FADING: Final = 0.97
"""Weight of a pair after the next one: the last 30 or so count."""


@dataclass(frozen=True)
class Line:
    """Seconds by tokens."""

    base_s: float
    s_per_token: float

    def at(self, tokens: int) -> float:
        """Seconds for so many tokens."""
        return self.base_s + self.s_per_token * tokens


class FadingLine:
    """A line through what was seen lately.

    Attributes:
        count: Pairs seen since the start.
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        self.count += 1
        self._weight = FADING * self._weight + 1.0
        self._x = FADING * self._x + tokens
        self._y = FADING * self._y + seconds
        self._xx = FADING * self._xx + tokens * tokens
        self._xy = FADING * self._xy + tokens * seconds

    def line(self) -> Line | None:
        """The line, or one through the origin where sizes hardly differ; None: nothing is known."""
        if not self._x:
            return None
        spread = self._weight * self._xx - self._x**2
        if spread > 1e-6 * self._x**2:
            slope = (self._weight * self._xy - self._x * self._y) / spread
            base = (self._y - slope * self._x) / self._weight
            if slope > 0 and base >= 0:
                return Line(base, slope)
        return Line(0.0, self._y / self._x)
