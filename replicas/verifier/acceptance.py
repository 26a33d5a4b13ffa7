"""How likely the target accepts a draft token, learned from what it has accepted.

Two layers, each a Beta-like count that forgets:

    group     by source, request class and place in the draft. A place that was hardly tried is
              taken to be like the one before it, and the first like the prior.
    request   all places of one request together, with its group as the prior. It forgets by
              the steps that pass, too, so that what was said long ago does not speak for now.

    a[place] = (accepted + weight * group[place]) / (tried + weight)

A place counts as tried when all before it were accepted, so that each is the probability given
the ones before it, as the expected length of a draft needs it (paceline theory notes, "Tokens
per round").
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

PRIOR: Final = 0.5
"""Of a source that was never tried."""
PRIOR_WEIGHT: Final = 4.0
"""Trials that the prior, or the place before, counts as."""
GROUP_MEMORY: Final = 64.0
"""Trials of a place after which all but 1/e is forgotten."""
REQUEST_MEMORY: Final = 16.0
"""The same for a request."""
REQUEST_WEIGHT: Final = 3.0
"""Trials that the group counts as for one request."""
REQUEST_HALF_LIFE_STEPS: Final = 64.0
FOUND_MEMORY: Final = 64.0
"""Asks of a class after which what was found is forgotten but for 1/e."""
LEAST_FOUND: Final = 0.05
MAX_GROUPS: Final = 64
NO_SOURCE: Final = ""


class RequestRecord:
    """What is known of one request's drafts."""

    __slots__ = (
        *("accepted", "asked", "asked_at_step", "at_step", "found", "group", "request_class"),
        "tried",
    )

    def __init__(self, request_class: str, group: int, step: int) -> None:
        self.request_class = request_class
        self.group = group
        self.tried = self.accepted = 0.0
        self.at_step = step
        self.asked = self.found = 0.0
        self.asked_at_step = step


class Acceptance:
    """Estimates for all requests of one engine.

    Args:
        longest: Places that a draft may have.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._groups: dict[tuple[str, str], int] = {}
        # Lists: a few places at a time are several times as fast as in arrays.
        self._tried = [[0.0] * longest for _ in range(MAX_GROUPS)]
        self._accepted = [[0.0] * longest for _ in range(MAX_GROUPS)]
        self._rates = np.full((MAX_GROUPS, longest), PRIOR)
        self._stale: set[int] = set()
        self._last_of_class: dict[str, int] = {}
        self._found_of_class: dict[str, float] = {}

    def start(self, request_class: str, step: int) -> RequestRecord:
        """The record of a new request: as others of its class, from their latest source."""
        group = self._last_of_class.get(request_class)
        if group is None:
            group = self._group(NO_SOURCE, request_class)
        return RequestRecord(request_class, group, step)

    def asked(self, record: RequestRecord, found: bool, step: int) -> None:
        """A draft was asked for, and there was one or not."""
        mean = self._found_of_class.get(record.request_class, 1.0)
        self._found_of_class[record.request_class] = mean + (found - mean) / FOUND_MEMORY
        kept = 0.5 ** ((step - record.asked_at_step) / REQUEST_HALF_LIFE_STEPS)
        kept *= 1.0 - 1.0 / REQUEST_MEMORY
        record.asked = record.asked * kept + 1.0
        record.found = record.found * kept + found
        record.asked_at_step = step

    def verified(
        self, record: RequestRecord, source: str, drafted: int, accepted: int, step: int
    ) -> None:
        """The target accepted the first `accepted` of `drafted` tokens that `source` drafted.

        Args:
            record: Of the request.
            source: Who drafted.
            drafted: Tokens, at least 1.
            accepted: Tokens, 0 to `drafted`.
            step: Count of engine steps; never falls.
        """
        drafted = min(drafted, self._longest)
        accepted = min(accepted, drafted)
        tried = min(accepted + 1, drafted)
        group = self._group(source, record.request_class)
        self._last_of_class[record.request_class] = record.group = group
        keep = 1.0 - 1.0 / GROUP_MEMORY
        tries, successes = self._tried[group], self._accepted[group]
        for place in range(tried):
            tries[place] = tries[place] * keep + 1.0
            successes[place] = successes[place] * keep + (place < accepted)
        self._stale.add(group)
        kept: float = 0.5 ** ((step - record.at_step) / REQUEST_HALF_LIFE_STEPS)
        kept *= (1.0 - 1.0 / REQUEST_MEMORY) ** tried
        record.tried = record.tried * kept + tried
        record.accepted = record.accepted * kept + accepted
        record.at_step = step

    def rates(self, records: Sequence[RequestRecord], step: int) -> Floats:
        """[requests, places] probability that a place is accepted if all before it are, 0-1."""
        for group in self._stale:
            self._refresh(group)
        self._stale.clear()
        known = np.array([(r.group, r.tried, r.accepted, r.at_step) for r in records])
        prior = self._rates[known[:, 0].astype(np.int64)]
        kept = 0.5 ** ((step - known[:, 3]) / REQUEST_HALF_LIFE_STEPS)
        tried, accepted = known[:, 1] * kept, known[:, 2] * kept
        rates: Floats = (accepted[:, None] + REQUEST_WEIGHT * prior) / (tried + REQUEST_WEIGHT)[
            :, None
        ]
        return rates

    def found(self, records: Sequence[RequestRecord], step: int) -> Floats:
        """[requests] probability that there is a draft when one is asked for, 0-1."""
        of_class = self._found_of_class
        known = np.array(
            [
                (of_class.get(r.request_class, 1.0), r.asked, r.found, r.asked_at_step)
                for r in records
            ]
        )
        kept = 0.5 ** ((step - known[:, 3]) / REQUEST_HALF_LIFE_STEPS)
        asked, found = known[:, 1] * kept, known[:, 2] * kept
        chances: Floats = (found + REQUEST_WEIGHT * np.maximum(known[:, 0], LEAST_FOUND)) / (
            asked + REQUEST_WEIGHT
        )
        return chances

    def by_group(self) -> dict[tuple[str, str], list[float]]:
        """(source, class) -> rates by place, of groups that were tried."""
        for group in self._stale:
            self._refresh(group)
        self._stale.clear()
        return {
            key: self._rates[group].tolist()
            for key, group in self._groups.items()
            if self._tried[group][0] > 0
        }

    def _refresh(self, group: int) -> None:
        before = PRIOR
        rates = self._rates[group]
        tried, accepted = self._tried[group], self._accepted[group]
        for place in range(self._longest):
            before = (accepted[place] + PRIOR_WEIGHT * before) / (tried[place] + PRIOR_WEIGHT)
            rates[place] = before

    def _group(self, source: str, request_class: str) -> int:
        key = (source, request_class)
        group = self._groups.get(key)
        if group is None:
            # The last one is for all that come after it.
            group = self._groups[key] = min(len(self._groups), MAX_GROUPS - 1)
        return group


def expected_tokens(rates: Iterable[float]) -> float:
    """Tokens of one round whose draft has these conditional acceptances by place.

    `E[N] = 1 + sum_j prod_{i<=j} a_i` (paceline theory notes, "Tokens per round").
    """
    tokens = reached = 1.0
    for rate in rates:
        reached *= rate
        tokens += reached
    return tokens
