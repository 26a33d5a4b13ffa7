"""How much of a draft to verify, by how sure its source is of it.

Lengths are chosen before there is a draft, from what earlier ones were like. When it is there,
its source has said how sure it is of just this one, and what that is worth has been learned:

    odds(a) = odds(the request's estimate) * odds(drafts as sure as this) / odds(all drafts)

with the last two of the same source. Tokens are kept for as long as the chance that all up to
there are right is at least their price, in tokens. A kind of draft that is cut to nothing is
forgotten after some hundred steps, and so is tried again.
"""

from collections.abc import Sequence
from typing import Final

STEPS: Final = 8
"""Of confidence, between 0 and 1, that are told apart."""
HALF_LIFE_STEPS: Final = 256.0
"""Engine steps after which half of what was seen is forgotten."""
WEIGHT: Final = 6.0
"""Trials that a source's mean counts as for one step of confidence."""
LEAST: Final = 0.01
"""No chance is taken to be nearer to 0 or 1."""


class _Count:
    """Accepted among tried places; both fade."""

    __slots__ = ("accepted", "at_step", "tried")

    def __init__(self) -> None:
        self.tried = self.accepted = 0.0
        self.at_step = 0

    def add(self, tried: int, accepted: int, step: int) -> None:
        kept = self.kept(step)
        self.tried, self.accepted = self.tried * kept + tried, self.accepted * kept + accepted
        self.at_step = step

    def kept(self, step: int) -> float:
        faded: float = 0.5 ** ((step - self.at_step) / HALF_LIFE_STEPS)
        return faded


class Confidences:
    """What the confidence of each source has been worth."""

    def __init__(self) -> None:
        self._of_source: dict[str, _Count] = {}
        self._of_step: dict[tuple[str, int], _Count] = {}

    def verified(
        self, source: str, confidence: float, drafted: int, accepted: int, step: int
    ) -> None:
        """The target accepted the first `accepted` of `drafted` tokens, 1 or more, of a draft
        of which its source was so sure (0-1; 0: it said nothing).
        """
        if not confidence:
            return
        tried = min(accepted + 1, drafted)
        for count in (
            self._of_source.setdefault(source, _Count()),
            self._of_step.setdefault((source, _step_of(confidence)), _Count()),
        ):
            count.add(tried, accepted, step)

    def worth(
        self,
        rates: Sequence[float],
        price: float,
        source: str,
        confidence: float,
        step: int,
    ) -> list[float]:
        """Chances that all draft tokens up to a place are right, of the places to be kept.

        Args:
            rates: For each token of the draft, the estimate that it is accepted if all before
                it are, 0-1.
            price: Tokens that another draft token must be expected to bring.
            source: Who drafted.
            confidence: Of the source, 0-1; 0: it said nothing.
            step: Count of engine steps.
        """
        ratio = self._odds_ratio(source, confidence, step) if confidence else 1.0
        kept: list[float] = []
        reached = 1.0
        for rate in rates:
            reached *= _with_odds(rate, ratio)
            if confidence and reached < price:
                break
            kept.append(reached)
        return kept

    def _odds_ratio(self, source: str, confidence: float, step: int) -> float:
        """Of drafts that are as sure as this one against all of the source."""
        every = self._of_source.get(source)
        alike = self._of_step.get((source, _step_of(confidence)))
        if every is None or alike is None or not every.tried:
            return 1.0
        mean = every.accepted / every.tried
        kept = alike.kept(step)
        rate = (alike.accepted * kept + WEIGHT * mean) / (alike.tried * kept + WEIGHT)
        return _odds(rate) / _odds(mean)


def _step_of(confidence: float) -> int:
    return min(STEPS - 1, int(confidence * STEPS))


def _odds(rate: float) -> float:
    rate = min(1.0 - LEAST, max(LEAST, rate))
    return rate / (1.0 - rate)


def _with_odds(rate: float, ratio: float) -> float:
    if ratio == 1.0:
        return rate
    odds = _odds(rate) * ratio
    return odds / (1.0 + odds)
