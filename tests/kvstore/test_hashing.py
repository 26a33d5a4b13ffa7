"""Blocks have the same name everywhere, and another wherever anything differs."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.hashing import block_hashes, pack_hashes, root_hash, unpack_hashes

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=80)
ROOT = ("weights", "adapter", "salt", 16)
SCRIPT = """
import numpy as np
from kvstore.hashing import block_hashes, root_hash
root = root_hash("weights", "adapter", "salt", 16)
print(block_hashes(root, np.arange(100, dtype=np.int32), 16))
"""


def names(root: int, ids: list[int], block: int = 4) -> list[int]:
    return block_hashes(root, np.array(ids, dtype=np.int32), block)


@pytest.mark.parametrize("seed", ["random", "0", "123"])
def test_every_process_gives_the_same_names(seed: str) -> None:
    """Whatever Python's hash seed; these are the names of scheme 1, for ever."""
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == str(
        block_hashes(root_hash(*ROOT), np.arange(100, dtype=np.int32), 16)
    )
    assert told.stdout.startswith("[14334735874186812180, ")


@given(tokens, tokens)
def test_equal_beginnings_have_equal_names(one: list[int], other: list[int]) -> None:
    """And from the first different block on, all names differ."""
    left, right = names(7, one), names(7, other)
    same = [
        one[i * 4 : i * 4 + 4] == other[i * 4 : i * 4 + 4]
        for i in range(min(map(len, (left, right))))
    ]
    run = same.index(False) if False in same else len(same)
    assert left[:run] == right[:run]
    assert not set(left[run:]) & set(right[run:])


@given(tokens, st.integers(0, 20))
def test_a_chain_can_be_continued(ids: list[int], cut: int) -> None:
    """The hash of a block is the root of what follows it."""
    whole = names(7, ids)
    cut = min(cut, len(whole))
    if cut:
        assert whole[:cut] + names(whole[cut - 1], ids[cut * 4 :]) == whole


def test_only_whole_blocks_have_a_name() -> None:
    """Three tokens of four are none."""
    assert names(7, [1, 2, 3]) == []
    assert len(names(7, [1, 2, 3, 4, 5])) == 1


@pytest.mark.parametrize("place", range(4))
def test_everything_a_block_depends_on_is_in_its_name(place: int) -> None:
    """Weights, adapter, salt, size of blocks: change one, and nothing is shared."""
    other = list(ROOT)
    other[place] = 32 if place == 3 else "another"
    assert root_hash(*ROOT) != root_hash(*other)  # type: ignore[arg-type]


def test_fields_do_not_run_together() -> None:
    """`ab` and `c` are not `a` and `bc`."""
    assert root_hash("ab", "c", "", 16) != root_hash("a", "bc", "", 16)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_names_travel_unchanged(hashes: list[int]) -> None:
    """Eight bytes each."""
    assert unpack_hashes(pack_hashes(hashes)) == hashes
