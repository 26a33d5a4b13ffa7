"""What one tier of shared KV blocks has done, how fast it is, and whether it is left alone.

Pure but for its metrics; `now_s` comes in. After a failure the tier is left alone until somebody
has looked and found it back: after half a second, then twice as long each time, at most five.
"""

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Counter, Gauge

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
TELL_FULL_EVERY_S: Final = 300.0
FADING: Final = 0.9
"""Weight of a transfer after the next one, in rates."""

_transfers = Counter(
    "paceline_kv_transfers_total",
    "Objects by what became of them.",
    ["tier", "what"],
)
_bytes = Counter("paceline_kv_transferred_bytes_total", "Bytes moved.", ["tier", "direction"])
_left_alone = Gauge(
    "paceline_kv_tier_left_alone",
    "1 while a tier is not asked because it failed, else 0.",
    ["tier"],
)


@dataclass
class TierAccount:
    """One tier's. Threads may share it.

    Attributes:
        kind: Of the tier, as in the config.
        counts: Objects by what became of them: `loaded`, `stored`, `missed` (not there when
            asked for), `refused` (not what was sealed), `dropped` (no room), `failed`.
        bytes_loaded: Bytes that came.
        bytes_stored: Bytes that went.
        lookup_s: Usual time of a look-up; 0 where there was none.
        bytes_per_s: Usual rate of a load of several values; 0 where none came.
    """

    kind: str
    counts: dict[str, int] = field(default_factory=dict)
    bytes_loaded: int = 0
    bytes_stored: int = 0
    lookup_s: float = 0.0
    bytes_per_s: float = 0.0
    _failures: int = 0
    _retry_at_s: float = float("-inf")
    _told_full_at_s: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_left_alone(self) -> bool:
        """Whether the tier isn't asked."""
        with self._lock:
            return self._failures > 0

    def is_due(self, now_s: float) -> bool:
        """Whether to look if it is back: once at the end of each pause."""
        with self._lock:
            if not self._failures or now_s < self._retry_at_s:
                return False
            self._retry_at_s = now_s + self._pause_s()
            return True

    def answered(self) -> None:
        """The store answered."""
        with self._lock:
            was_bad, self._failures = self._failures, 0
        if was_bad:
            _left_alone.labels(self.kind).set(0)
            logger.warning("kv tier=%s state=back", self.kind)

    def failed(self, reason: str, now_s: float) -> None:
        """The store failed; what was asked for counts as not there."""
        with self._lock:
            self._failures += 1
            first = self._failures == 1
            self._retry_at_s = now_s + self._pause_s()
        self._count("failed")
        if first:
            _left_alone.labels(self.kind).set(1)
            logger.warning("kv tier=%s state=left_alone reason=%s", self.kind, reason)

    def looked_up(self, seconds: float) -> None:
        """A look-up took so long."""
        with self._lock:
            self.lookup_s = _faded(self.lookup_s, seconds)

    def loaded(self, size: int) -> None:
        """A value came, whole and ours."""
        self._count("loaded")
        _bytes.labels(self.kind, "in").inc(size)
        with self._lock:
            self.bytes_loaded += size

    def took(self, size: int, seconds: float) -> None:
        """The values of one load together took so long."""
        if size and seconds > 0:
            with self._lock:
                self.bytes_per_s = _faded(self.bytes_per_s, size / seconds)

    def stored(self, size: int) -> None:
        """A value went."""
        self._count("stored")
        _bytes.labels(self.kind, "out").inc(size)
        with self._lock:
            self.bytes_stored += size

    def missed(self) -> None:
        """A value that was asked for was not there."""
        self._count("missed")

    def refused(self) -> None:
        """A value was there, but not as it was sealed."""
        self._count("refused")
        logger.warning(
            "kv tier=%s value=refused: it was changed, or is not this cluster's", self.kind
        )

    def dropped(self, now_s: float) -> None:
        """A value found no room; the log is told every five minutes while that goes on."""
        self._count("dropped")
        with self._lock:
            is_told = now_s - self._told_full_at_s < TELL_FULL_EVERY_S
            if not is_told:
                self._told_full_at_s = now_s
        if not is_told:
            logger.warning("kv tier=%s state=full: what finds no room is not kept", self.kind)

    def status(self) -> dict[str, Any]:
        """For LMCache's `/status`."""
        with self._lock:
            return {
                "is_healthy": not self._failures,
                "type": f"paceline-{self.kind}",
                "kind": self.kind,
                "counts": dict(self.counts),
                "bytes_loaded": self.bytes_loaded,
                "bytes_stored": self.bytes_stored,
                "lookup_s": self.lookup_s,
                "bytes_per_s": self.bytes_per_s,
            }

    def _count(self, what: str) -> None:
        _transfers.labels(self.kind, what).inc()
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def _pause_s(self) -> float:
        return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 8)))


def _faded(usual: float, newest: float) -> float:
    return newest if not usual else FADING * usual + (1 - FADING) * newest
