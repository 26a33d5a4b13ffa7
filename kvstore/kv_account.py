"""One engine's blocks with a number on every change, so that others can keep a copy.

Pure: batches of engine events go in, deltas and snapshots come out; sockets are the relay's.
An engine numbers its batches from 0. What comes twice counts once; a gap asks for a replay;
where the engine cannot replay, or counts anew, the account is started anew under another epoch,
empty: what the engine held before may be gone.
"""

import logging
import time
from collections.abc import Iterator
from enum import Enum

import msgspec

from kvstore.hashing import Naming, pack_hashes
from kvstore.held_blocks import HeldBlocks, decode_events
from kvstore.kv_messages import PART_HASHES, Change, Delta, LoadReport, SnapshotPart

logger = logging.getLogger(__name__)


class Taken(Enum):
    """What became of a batch."""

    APPLIED = "applied"
    REPEATED = "it had come before"
    GAP = "batches before it are missing"


class KvAccount:
    """The numbered account of one engine's blocks.

    Args:
        naming: What our names of blocks depend on.

    Attributes:
        epoch: Of the account; another whenever it starts anew.
        sequence: Of the last delta.
        gaps: How often batches were missing.
        restarts: How often the account was started anew.
        unreadable: Batches that were no batches of events.
    """

    def __init__(self, naming: Naming) -> None:
        self.epoch = time.time_ns()
        self.sequence = 0
        self.gaps = 0
        self.restarts = 0
        self.unreadable = 0
        self._held = HeldBlocks(naming)
        self._next = 0
        self._last_ts = float("-inf")

    @property
    def next_batch(self) -> int:
        """Number of the batch that should come next."""
        return self._next

    @property
    def blocks(self) -> int:
        """Blocks that are held and have a name."""
        return len(self._held)

    @property
    def unnamed(self) -> int:
        """Blocks that were left out because they have no name of ours."""
        return self._held.unnamed

    def take(self, number: int, payload: bytes) -> Taken:
        """Takes in one batch of the engine.

        Args:
            number: The engine's count of batches, from 0.
            payload: vLLM's `KVEventBatch`, msgpack.
        """
        try:
            batch = decode_events(payload)
            if number < self._next:
                if batch.ts <= self._last_ts:
                    return Taken.REPEATED
                self.restart(at=number)  # A low number on a new batch: the engine began anew.
            if number > self._next:
                self.gaps += 1
                return Taken.GAP
            self._next, self._last_ts = number + 1, batch.ts
            for event in batch.events:
                if not self._held.apply(event):
                    self._new_epoch()
        except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
            self.unreadable += 1
            logger.warning("kv events=unreadable batch=%d error=%s", number, error)
            self.restart(at=number + 1)
        return Taken.APPLIED

    def restart(self, at: int) -> None:
        """Forgets everything; the next batch is number `at`."""
        self._held.clear()
        self._next = at
        self.restarts += 1
        self._new_epoch()

    def delta(self, load: LoadReport | None = None) -> Delta:
        """What changed since the delta before, and a load to go with it."""
        changes = [
            Change(tier, pack_hashes(added), pack_hashes(removed))
            for tier, (added, removed) in self._held.take_changes().items()
            if added or removed
        ]
        self.sequence += bool(changes)
        return Delta(self.epoch, self.sequence, changes, load)

    def snapshot(self) -> Iterator[SnapshotPart]:
        """All that is held after the last delta; ask for that first."""
        pieces = [
            (tier, hashes[start : start + PART_HASHES])
            for tier, held in self._held.tiers().items()
            for hashes in [list(held)]
            for start in range(0, len(hashes), PART_HASHES)
        ] or [("device", [])]
        for part, (tier, hashes) in enumerate(pieces):
            yield SnapshotPart(
                self.epoch, self.sequence, part, len(pieces), tier, pack_hashes(hashes)
            )

    def _new_epoch(self) -> None:
        self.epoch = max(self.epoch + 1, time.time_ns())
        self.sequence = 0
