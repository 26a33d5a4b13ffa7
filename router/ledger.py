"""What one router sent where, until the verifiers' own reports take over.

On the direct path a router is told neither when a request starts nor when it
ends, so it counts its own picks and forgets each one as soon as the verifier
has reported after it.
"""

from collections import deque
from collections.abc import Iterable

from router.types import Load

FORGET_AFTER_S = 60.0
"""A verifier that has not reported for so long is not held to old picks."""


class PickLedger:
    """Picks by verifier. Bounded by the picks of FORGET_AFTER_S."""

    def __init__(self) -> None:
        self._picked_at_s: dict[str, deque[float]] = {}
        self._last_pick: dict[str, int] = {}
        self._picks = 0

    def picked(self, replica_id: str, now_s: float) -> None:
        """Notes that a request goes to `replica_id` now (wall clock, seconds)."""
        self._picks += 1
        self._last_pick[replica_id] = self._picks
        self._picked_at_s.setdefault(replica_id, deque()).append(now_s)

    def load(self, replica_id: str, in_flight: int, reported_at_s: float, now_s: float) -> Load:
        """The verifier's load as of now.

        Args:
            replica_id: Serve's id of the replica.
            in_flight: Requests it reported.
            reported_at_s: When it did (its wall clock, seconds); picks before are forgotten.
            now_s: Now, wall clock, seconds.
        """
        picks = self._picked_at_s.get(replica_id, deque())
        known_until_s = max(reported_at_s, now_s - FORGET_AFTER_S)
        while picks and picks[0] <= known_until_s:
            picks.popleft()
        return Load(replica_id, in_flight, len(picks), self._last_pick.get(replica_id, 0))

    def keep_only(self, replica_ids: Iterable[str]) -> None:
        """Forgets every verifier that is not in `replica_ids`."""
        alive = set(replica_ids)
        for gone in [known for known in self._last_pick if known not in alive]:
            del self._last_pick[gone]
            self._picked_at_s.pop(gone, None)
