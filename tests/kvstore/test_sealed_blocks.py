"""A value in Redis or on disk is exactly what this cluster put there, or it is none."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.sealed_blocks import SEAL_BYTES, BlockKey, Seal

SEAL = Seal(b"a token of sixteen bytes")
KEY = BlockKey(b"\x01" * 32, "/models/m", 0, 0, "ab" * 32)
blocks = st.binary(min_size=1, max_size=300)


@given(blocks)
def test_what_was_sealed_comes_back(data: bytes) -> None:
    """Byte for byte."""
    name = SEAL.name(KEY)
    value = bytes(SEAL.sealed(name, memoryview(data)))
    assert len(value) == len(data) + SEAL_BYTES
    opened = SEAL.opened(name, value, len(data))
    assert opened is not None
    assert bytes(opened) == data


@given(blocks, st.data())
def test_a_changed_bit_makes_it_none(data: bytes, draw: st.DataObject) -> None:
    """Anywhere in the value."""
    name = SEAL.name(KEY)
    value = SEAL.sealed(name, memoryview(data))
    place = draw.draw(st.integers(0, len(value) - 1))
    value[place] ^= 1 << draw.draw(st.integers(0, 7))
    assert SEAL.opened(name, bytes(value), len(data)) is None


@given(blocks, st.data())
def test_a_part_of_a_value_is_none(data: bytes, draw: st.DataObject) -> None:
    """However much of it is left, and where something was added."""
    name = SEAL.name(KEY)
    value = bytes(SEAL.sealed(name, memoryview(data)))
    left = draw.draw(st.integers(0, len(value) - 1))
    assert SEAL.opened(name, value[:left], len(data)) is None
    assert SEAL.opened(name, value + b"\0", len(data)) is None


def test_a_value_of_another_key_or_cluster_is_none() -> None:
    """It can't be moved to another name, nor made without the token."""
    data = memoryview(b"keys and values")
    name, other = SEAL.name(KEY), SEAL.name(replace(KEY, chunk_hash=b"\x02" * 32))
    assert SEAL.opened(other, bytes(SEAL.sealed(name, data)), len(data)) is None
    stranger = Seal(b"another token of sixteen")
    assert SEAL.opened(name, bytes(stranger.sealed(name, data)), len(data)) is None


@pytest.mark.parametrize(
    "changed",
    [{"chunk_hash": b"\x02" * 32}, {"rank": 1}, {"group": 1}, {"salt": "cd" * 32}, {"salt": ""}],
)
def test_whatever_makes_blocks_differ_makes_names_differ(changed: dict) -> None:
    """Tokens, rank, layers, and what the salt stands for."""
    assert SEAL.name(replace(KEY, **changed)) != SEAL.name(KEY)


def test_the_models_path_counts_only_where_no_salt_stands_for_the_weights() -> None:
    """Nodes may keep the same weights in different folders."""
    elsewhere = replace(KEY, model="/other/m")
    assert SEAL.name(elsewhere) == SEAL.name(KEY)
    assert SEAL.name(replace(elsewhere, salt="")) != SEAL.name(replace(KEY, salt=""))


def test_names_are_the_same_in_every_process() -> None:
    """Two nodes, two versions of Python: one name."""
    assert SEAL.name(KEY) == b"5f80f522755d74a23c01fb2e361a6dea00a68f4c"


def test_a_short_token_is_refused() -> None:
    """It could be guessed."""
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Seal(b"short")
