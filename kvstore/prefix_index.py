"""Which verifier holds which blocks, as a router knows it.

For each verifier and tier a set of block hashes. Hashes are chained, so a verifier that
holds block i of a prompt can use it only if it holds all blocks before it: the useful number
is the length of the leading run, and it is found by galloping, not by scanning:

    holds?  0  1  3  7  15   then by halving between the last yes and the first no
            y  y  y  y  n    -> 8..14: 11 y, 13 n, 12 n -> 12 leading blocks

A prompt of n blocks costs about 2 log2(n) look-ups a verifier. Engines drop the end of a
prefix first, so a run has no holes as a rule; `confirm` checks the run of the one verifier
that is about to be chosen, block by block.

One thread at a time. What is unknown or doubtful counts as not held.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvstore.kv_messages import DEVICE, HOST, STORAGE

PLACES_BYTES: Final = 72
"""Most that a set's table may take for each hash in it. Python enlarges small sets to 107 bytes a
hash; copied, a set takes 32 to 64."""
BYTES_A_BLOCK: Final = 48 + PLACES_BYTES
"""Of one hash in one set, at most: an int of 64 bits takes 48 bytes (36 and the allocator's
rounding). On average `make bench-router` finds 81."""
SMALL_BYTES: Final = 1 << 14
"""A table that is not looked at, whatever is in it."""


@dataclass(frozen=True)
class Match:
    """How much of one prompt a verifier holds, or can fetch.

    Attributes:
        device_blocks: Leading blocks that are ready to use.
        colder_blocks: Blocks that follow these on colder tiers, and have to be fetched.
        storage_blocks: The last of those, which lie in no memory of its node.
    """

    device_blocks: int = 0
    colder_blocks: int = 0
    storage_blocks: int = 0

    @property
    def blocks(self) -> int:
        """Leading blocks on any tier."""
        return self.device_blocks + self.colder_blocks

    def reaching(self, host_run: int, storage_run: int) -> "Match":
        """With what others put where this verifier can fetch it.

        Args:
            host_run: Leading blocks in the memory of its node.
            storage_run: Leading blocks in what all nodes share.
        """
        near = max(self.blocks - self.storage_blocks, host_run)
        total = max(self.blocks, host_run, storage_run)
        return Match(self.device_blocks, total - self.device_blocks, total - near)


NOTHING: Final = Match()


class PrefixIndex:
    """The blocks of all verifiers, bounded.

    Args:
        max_blocks: Most entries over all verifiers and tiers; what finds no room is left out.

    Attributes:
        left_out: Entries that found no room, since the start.
    """

    def __init__(self, max_blocks: int) -> None:
        self.left_out = 0
        self._max_blocks = max_blocks
        self._held: dict[str, dict[str, set[int]]] = {}
        self._blocks = 0

    def __len__(self) -> int:
        return self._blocks

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._held

    @property
    def replicas(self) -> tuple[str, ...]:
        """Those of which anything is known."""
        return tuple(self._held)

    @property
    def nbytes(self) -> int:
        """About how much memory the entries take."""
        tables = sum(sys.getsizeof(s) for tiers in self._held.values() for s in tiers.values())
        return tables + 48 * self._blocks

    def replace(self, replica_id: str, tiers: Mapping[str, set[int]]) -> None:
        """A verifier's blocks are exactly these; takes over the sets."""
        self.forget(replica_id)
        kept: dict[str, set[int]] = {}
        for tier, hashes in tiers.items():
            room = self._max_blocks - self._blocks
            if len(hashes) > room:
                self.left_out += len(hashes) - room
                hashes = set(list(hashes)[:room])
            kept[tier] = _tight(hashes)
            self._blocks += len(hashes)
        self._held[replica_id] = kept

    def add(self, replica_id: str, tier: str, hashes: Iterable[int]) -> None:
        """A verifier of which anything is known holds these, too."""
        if (tiers := self._held.get(replica_id)) is None:
            return
        held = tiers.setdefault(tier, set())
        before, room = len(held), self._max_blocks - self._blocks
        new = list(hashes)
        if len(new) <= room:
            held.update(new)
        else:
            for block in new:
                if block in held or len(held) - before < room:
                    held.add(block)
                else:
                    self.left_out += 1
        self._blocks += len(held) - before
        tiers[tier] = _tight(held)

    def remove(self, replica_id: str, tier: str, hashes: Iterable[int]) -> None:
        """A verifier no longer holds these."""
        tiers = self._held.get(replica_id, {})
        if (held := tiers.get(tier)) is None:
            return
        before = len(held)
        held.difference_update(hashes)
        self._blocks += len(held) - before
        tiers[tier] = _tight(held)

    def forget(self, replica_id: str) -> None:
        """Nothing is known of this verifier; nothing of it stays."""
        for hashes in self._held.pop(replica_id, {}).values():
            self._blocks -= len(hashes)

    def holds(self, block: int) -> bool:
        """Whether any verifier holds a block, in any tier."""
        return any(block in held for tiers in self._held.values() for held in tiers.values())

    def match(self, replica_id: str, chain: Sequence[int]) -> Match:
        """How much of a prompt a verifier holds, if its runs have no holes.

        Args:
            replica_id: Whose blocks.
            chain: Hashes of the prompt's blocks, the first block first.
        """
        tiers = self._held.get(replica_id)
        if not tiers or not chain:
            return NOTHING
        device = _leading(tiers.get(DEVICE, _NO_HASHES), chain, 0)
        host = _leading(tiers.get(HOST, _NO_HASHES), chain, device)
        total = _leading(tiers.get(STORAGE, _NO_HASHES), chain, host)
        return Match(device, total - device, total - host)

    def shared_runs(self, replica_id: str, chain: Sequence[int]) -> tuple[int, int]:
        """Leading blocks that a verifier put into its node's memory, and into storage."""
        tiers = self._held.get(replica_id)
        if not tiers or not chain:
            return 0, 0
        return (
            _leading(tiers.get(HOST, _NO_HASHES), chain, 0),
            _leading(tiers.get(STORAGE, _NO_HASHES), chain, 0),
        )

    def confirm(self, replica_id: str, chain: Sequence[int], match: Match) -> Match:
        """The part of `match` that holds block by block."""
        tiers = self._held.get(replica_id, {})
        device = _run(tiers.get(DEVICE, _NO_HASHES), chain, 0, match.device_blocks)
        if device < match.device_blocks:
            return Match(device, 0)
        near = match.blocks - match.storage_blocks
        host = _run(tiers.get(HOST, _NO_HASHES), chain, device, near)
        if host < near:
            return Match(device, host - device)
        total = _run(tiers.get(STORAGE, _NO_HASHES), chain, host, match.blocks)
        return Match(device, total - device, total - host)


_NO_HASHES: Final[set[int]] = set()


def _tight(held: set[int]) -> set[int]:
    """The same hashes in a table that is not much too large for them."""
    size = sys.getsizeof(held)
    return set(held) if size > max(SMALL_BYTES, PLACES_BYTES * len(held)) else held


def _leading(held: set[int], chain: Sequence[int], start: int) -> int:
    """End of the run of held blocks that begins at `start`, by galloping."""
    low, step, length = start, 1, len(chain)
    while low < length:  # Everything before `low` is held.
        probe = min(low + step, length) - 1
        if chain[probe] not in held:
            break
        low, step = probe + 1, step * 2
    else:
        return length
    high = probe  # Not held.
    while low < high:
        middle = (low + high) // 2
        if chain[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low


def _run(held: set[int], chain: Sequence[int], start: int, end: int) -> int:
    """End of the run of held blocks from `start`, at most `end`, one by one."""
    if held.issuperset(chain[start:end]):
        return max(start, end)
    return next(place for place in range(start, end) if chain[place] not in held)
