"""A router's copy of one verifier's account, kept right or given up.

Pure: messages go in, the index changes, and `needs_resync` says when to ask for a snapshot.
A delta that is not the next one, another epoch, or silence: the verifier counts as cold, at
once, and stays so until a whole snapshot has come.

             snapshot, all parts                      next delta
    cold  ------------------------->  in step  ------------------->  in step
      ^                                  |
      +----------------------------------+   gap, other epoch, silence, refusal
"""

from dataclasses import dataclass, field
from typing import Final

from kvstore.hashing import unpack_hashes
from kvstore.kv_messages import TIERS, Delta, LoadReport, SnapshotPart
from kvstore.prefix_index import PrefixIndex

DOUBTFUL_AFTER_S: Final = 1.5
"""Silence after which a verifier's blocks are doubtful; it speaks four times a second."""


@dataclass
class _Parts:
    """A snapshot that is on its way."""

    epoch: int
    sequence: int
    parts: int
    arrived: int = 0
    tiers: dict[str, set[int]] = field(default_factory=dict)


class KvFeed:
    """Keeps the part of an index that belongs to one verifier.

    Args:
        index: Where its blocks go.
        replica_id: Whose they are.

    Attributes:
        load: What the verifier said last about its load.
        gaps: How often the copy was found to be behind.
        repairs: Snapshots taken in, less the first.
    """

    def __init__(self, index: PrefixIndex, replica_id: str) -> None:
        self.load: LoadReport | None = None
        self.gaps = 0
        self.repairs = 0
        self._index = index
        self._replica_id = replica_id
        self._epoch: int | None = None
        self._sequence = 0
        self._parts: _Parts | None = None
        self._snapshots = 0
        self._heard_at_s = float("-inf")

    @property
    def needs_resync(self) -> bool:
        """Whether only a snapshot helps."""
        return self._epoch is None

    def take(self, message: SnapshotPart | Delta, now_s: float) -> None:
        """Takes one message in.

        Args:
            message: As the verifier sent it.
            now_s: Monotonic, seconds.
        """
        self._heard_at_s = now_s
        try:
            if isinstance(message, Delta):
                self._take_delta(message)
            else:
                self._take_part(message)
        except ValueError:  # Hashes that are not whole.
            self.doubt()

    def is_doubtful(self, now_s: float) -> bool:
        """Gives the copy up if the verifier has been silent for too long."""
        if self._epoch is not None and now_s - self._heard_at_s > DOUBTFUL_AFTER_S:
            self.doubt()
        return self._epoch is None

    def doubt(self) -> None:
        """The copy may be wrong: the verifier is cold until the next snapshot."""
        if self._epoch is not None:
            self.gaps += 1
        self._epoch = None
        self._index.forget(self._replica_id)

    def close(self) -> None:
        """The verifier is gone; nothing of it stays."""
        self._epoch, self._parts, self.load = None, None, None
        self._index.forget(self._replica_id)

    def _take_delta(self, delta: Delta) -> None:
        if delta.load is not None:
            self.load = delta.load
        if self._epoch is None:
            return
        # A delta from before the snapshot is old news, one of an older epoch too.
        if delta.epoch < self._epoch or (
            delta.epoch == self._epoch and delta.sequence < self._sequence
        ):
            return
        expected = self._sequence + bool(delta.changes)
        if delta.epoch != self._epoch or (delta.sequence != expected and not self._repeats(delta)):
            self.doubt()
        elif delta.sequence == expected and delta.changes:
            self._sequence = expected
            for change in delta.changes:
                if change.tier in TIERS:
                    self._index.add(self._replica_id, change.tier, unpack_hashes(change.added))
                    self._index.remove(self._replica_id, change.tier, unpack_hashes(change.removed))

    def _repeats(self, delta: Delta) -> bool:
        return bool(delta.changes) and delta.sequence == self._sequence

    def _take_part(self, part: SnapshotPart) -> None:
        if part.part == 0:
            self._parts = _Parts(part.epoch, part.sequence, part.parts)
        parts = self._parts
        if parts is None or (part.epoch, part.sequence, part.parts, part.part) != (
            parts.epoch,
            parts.sequence,
            parts.parts,
            parts.arrived,
        ):
            self._parts = None  # Incomplete; asked for again by the next `Follow`.
            return
        parts.arrived += 1
        if part.tier in TIERS:
            parts.tiers.setdefault(part.tier, set()).update(unpack_hashes(part.hashes))
        if parts.arrived < parts.parts:
            return
        self._parts = None
        if self._epoch == parts.epoch and parts.sequence < self._sequence:
            return  # Older than what is known.
        self._epoch, self._sequence = parts.epoch, parts.sequence
        self._index.replace(self._replica_id, parts.tiers)
        self.repairs += self._snapshots > 0
        self._snapshots += 1
