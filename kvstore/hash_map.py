"""A map from 64-bit numbers to 64-bit numbers, in 20 to 40 bytes an entry.

Two arrays and linear probing (Knuth, TAOCP 3, 6.4, algorithms L and R), where a dict of Python's
integers takes 120 bytes. Asked and changed by whole arrays: one call costs a microsecond. Not safe
to use from several threads.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvstore.compiled import compiled
from kvstore.hashing import Hashes

SMALLEST: Final = 1 << 10
"""Places of an empty map."""
FULLEST: Final = 0.8
"""Part of the places that may be taken. At 0.8 a look-up that fails tries 13 on average."""

STANDS_FOR_0: Final = 0x5BD1E9955BD1E995
"""For the key 0, which marks a free place: the two are one key."""

_ZERO: Final = np.uint64(STANDS_FOR_0)
_FREE: Final = np.uint64(0)
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


class HashMap:
    """What each key maps to. Keys are in it once."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the entries, and of the room for more."""
        return self._keys.nbytes + self._values.nbytes

    def clear(self) -> None:
        """Forgets everything, and gives the memory back."""
        self._keys: Hashes = np.zeros(SMALLEST, np.uint64)
        self._values: Hashes = np.zeros(SMALLEST, np.uint64)
        self._count = 0

    def get(self, key: int) -> int | None:
        """What a key maps to; None where it is not there."""
        place = _find(self._keys, np.uint64(key))
        return int(self._values[place]) if place >= 0 else None

    def insert(self, keys: Hashes, values: Hashes) -> NDArray[np.bool_]:
        """Adds entries; a key that is there keeps its value.

        Args:
            keys: [n] uint64.
            values: [n] uint64.

        Returns:
            [n] whether the key is new.
        """
        self._make_room(len(keys))
        is_new = np.empty(len(keys), np.bool_)
        self._count += _insert(self._keys, self._values, keys, values, is_new)
        return is_new

    def remove(self, keys: Hashes) -> Hashes:
        """Takes entries out, and returns what those that were there mapped to.

        Args:
            keys: [n] uint64.
        """
        gone = np.empty(len(keys), np.uint64)
        count = _remove(self._keys, self._values, keys, gone)
        self._count -= count
        return gone[:count]

    def values(self) -> Hashes:
        """What all keys map to, [len] uint64, in no order."""
        values: Hashes = self._values[self._keys != _FREE]
        return values

    def _make_room(self, more: int) -> None:
        size = len(self._keys)
        while (self._count + more) > FULLEST * size:
            size *= 2
        if size == len(self._keys):
            return
        is_taken = self._keys != _FREE
        keys, values = self._keys[is_taken], self._values[is_taken]
        self._keys, self._values = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
        _insert(self._keys, self._values, keys, values, np.empty(len(keys), np.bool_))


def _home(key: Any, mask: Any) -> Any:
    """Where a key would stand if it were alone."""
    return np.int64((key * _PRIME) >> _HALF) & mask


_home = compiled(None, inline="always")(_home)


def _place(keys: Any, key: Any) -> Any:
    """Where a key stands, or the free place where it would."""
    mask = len(keys) - 1
    place = _home(key, mask)
    while keys[place] != _FREE and keys[place] != key:
        place = (place + 1) & mask
    return place


_place = compiled(None)(_place)


def _find_key(keys: Any, key: Any) -> Any:
    place = _place(keys, key if key != _FREE else _ZERO)
    return place if keys[place] != _FREE else -1


_find: Callable[..., int] = compiled("int64(uint64[::1], uint64)")(_find_key)


def _insert_keys(keys: Any, values: Any, new_keys: Any, new_values: Any, is_new: Any) -> Any:
    count = 0
    for number in range(len(new_keys)):
        key = new_keys[number] if new_keys[number] != _FREE else _ZERO
        place = _place(keys, key)
        is_new[number] = keys[place] == _FREE
        if is_new[number]:
            keys[place] = key
            values[place] = new_values[number]
            count += 1
    return count


_insert: Callable[..., int] = compiled(
    "int64(uint64[::1], uint64[::1], uint64[::1], uint64[::1], boolean[::1])"
)(_insert_keys)


def _remove_keys(keys: Any, values: Any, gone_keys: Any, gone: Any) -> Any:
    mask = len(keys) - 1
    count = 0
    for number in range(len(gone_keys)):
        hole = _place(keys, gone_keys[number] if gone_keys[number] != _FREE else _ZERO)
        if keys[hole] == _FREE:
            continue
        gone[count] = values[hole]
        count += 1
        # What stands behind, and was pushed there by what stood here, moves up.
        place = (hole + 1) & mask
        while keys[place] != _FREE:
            if (place - _home(keys[place], mask)) & mask >= (place - hole) & mask:
                keys[hole] = keys[place]
                values[hole] = values[place]
                hole = place
            place = (place + 1) & mask
        keys[hole] = _FREE
    return count


_remove: Callable[..., int] = compiled("int64(uint64[::1], uint64[::1], uint64[::1], uint64[::1])")(
    _remove_keys
)
