"""A tier answers by what is there, whole and ours, and by nothing else; a failed one is quick."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from kvstore.errors import StoreUnavailable
from kvstore.sealed_blocks import BlockKey, Seal
from kvstore.sealed_tier import SealedTier
from kvstore.tier_account import FIRST_PAUSE_S, TierAccount

KEY = BlockKey(b"\x01" * 32, "/models/m", 0, 0, "ab" * 32)
BLOCKS = bytes(range(256)) * 4


class Shelf:
    """A store in memory that can be away, full, or spoiled."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.is_away = False
        self.is_full = False
        self.is_slow: threading.Event | None = None
        self.asks = 0

    def _come(self) -> None:
        self.asks += 1
        if self.is_slow is not None:
            self.is_slow.wait()
        if self.is_away:
            raise StoreUnavailable("shelf", "away", "wait")

    def lengths(self, names: Sequence[bytes]) -> list[int]:
        self._come()
        return [len(self.values.get(name, b"")) for name in names]

    def get(self, name: bytes) -> bytes | None:
        self._come()
        return self.values.get(name)

    def put(self, name: bytes, value: bytes | bytearray) -> bool:
        self._come()
        if not self.is_full:
            self.values[name] = bytes(value)
        return not self.is_full

    def delete(self, names: Sequence[bytes]) -> None:
        self._come()
        for name in names:
            self.values.pop(name, None)

    def close(self) -> None:
        pass


def tier(shelf: Shelf) -> SealedTier:
    return SealedTier(shelf, Seal(b"a token of sixteen bytes"), TierAccount("redis"))


def test_blocks_come_back_into_the_memory_that_waits_for_them() -> None:
    """With the length they had."""
    shelf = Shelf()
    one = tier(shelf)
    assert one.put(KEY, memoryview(BLOCKS)) == len(next(iter(shelf.values.values())))
    assert one.lengths([KEY, replace(KEY, rank=1)]) == [len(BLOCKS), 0]
    into = bytearray(len(BLOCKS))
    assert one.get(KEY, memoryview(into))
    assert into == BLOCKS
    one.delete([KEY])
    assert not one.get(KEY, memoryview(into))


def test_a_spoiled_value_is_refused_removed_and_never_written_anywhere() -> None:
    """The memory that waits for it stays as it was."""
    shelf = Shelf()
    one = tier(shelf)
    one.put(KEY, memoryview(BLOCKS))
    [name] = shelf.values
    shelf.values[name] = shelf.values[name][:-1] + b"?"
    into = bytearray(len(BLOCKS))
    assert not one.get(KEY, memoryview(into))
    assert into == bytes(len(BLOCKS))
    assert shelf.values == {}
    assert one.account.counts == {"stored": 1, "refused": 1}


def test_a_value_of_another_size_is_none() -> None:
    """Blocks of another type would have it."""
    shelf = Shelf()
    one = tier(shelf)
    one.put(KEY, memoryview(BLOCKS))
    assert not one.get(KEY, memoryview(bytearray(len(BLOCKS) * 2)))


def test_a_store_that_is_away_is_asked_once_and_then_left_alone() -> None:
    """Everything is a miss at once, and nothing is raised."""
    shelf = Shelf()
    shelf.is_away = True
    one = tier(shelf)
    for _ in range(20):
        assert one.put(KEY, memoryview(BLOCKS)) == 0
        assert one.lengths([KEY]) == [0]
        assert not one.get(KEY, memoryview(bytearray(len(BLOCKS))))
    assert shelf.asks == 1
    assert one.account.counts["failed"] == 1


def test_a_store_that_is_back_is_used_again_and_no_ask_waits_for_it() -> None:
    """Who asks while it is being looked at is told at once that nothing is there."""
    shelf = Shelf()
    one = tier(shelf)
    one.put(KEY, memoryview(BLOCKS))
    shelf.is_away = True
    assert one.lengths([KEY]) == [0]
    shelf.is_away, shelf.is_slow = False, threading.Event()
    time.sleep(1.1 * FIRST_PAUSE_S)
    for _ in range(20):
        assert one.lengths([KEY]) == [0]
    shelf.is_slow.set()
    until_s = time.monotonic() + 10
    while one.lengths([KEY]) == [0]:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert one.get(KEY, memoryview(bytearray(len(BLOCKS))))
    assert len(shelf.values) == 1


def test_what_has_no_room_is_dropped_and_counted() -> None:
    """A full store is no failure."""
    shelf = Shelf()
    shelf.is_full = True
    one = tier(shelf)
    assert one.put(KEY, memoryview(BLOCKS)) == 0
    assert one.account.counts == {"dropped": 1}
