"""What verifiers and routers say to each other arrives as it was said, or not at all."""

import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import MalformedMessage
from kvstore.hashing import pack_hashes
from kvstore.kv_messages import (
    Change,
    Delta,
    Follow,
    KvCodec,
    LoadReport,
    Refusal,
    SnapshotPart,
)
from kvstore.signed_frames import MAX_MESSAGE_BYTES

CODEC = KvCodec(b"sixteen bytes or more")
FOLLOW = Follow(1, 32, "weights", True)
LOAD = LoadReport(1, 2, 0.1, 0.2, 3, 4, 5.0)
TELLINGS = [
    SnapshotPart(7, 8, 0, 2, "device", pack_hashes([1, 2**64 - 1])),
    Delta(7, 9, [Change("device", pack_hashes([3]), b"")], LOAD),
    Delta(7, 9, []),
    Refusal("another weights"),
]


def what_is_wrong(frames: list[bytes]) -> str:
    with pytest.raises(MalformedMessage) as caught:
        CODEC.unpack_telling(frames)
    return caught.value.what


@pytest.mark.parametrize("message", TELLINGS)
def test_a_message_arrives_as_it_was_sent(message: Delta) -> None:
    """Every kind, with and without a load."""
    assert CODEC.unpack_telling(CODEC.pack(message)) == message
    assert CODEC.unpack_follow(CODEC.pack(FOLLOW)) == FOLLOW


def test_without_the_token_nothing_is_believed() -> None:
    """Another token, another direction, a changed byte: all the same."""
    header, payload = CODEC.pack(TELLINGS[0])
    assert what_is_wrong(KvCodec(b"another token, as long").pack(TELLINGS[0])) == "token"
    assert what_is_wrong(CODEC.pack(FOLLOW)) == "token"
    assert what_is_wrong([header, payload[:-1] + b"x"]) == "token"
    with pytest.raises(MalformedMessage):
        CODEC.unpack_follow([header, payload])


def test_another_version_is_told_apart() -> None:
    """Before the signature is looked at."""
    header, payload = CODEC.pack(TELLINGS[0])
    assert what_is_wrong([header[:3] + b"\x02" + header[4:], payload]) == "version"


def test_a_giant_is_refused_unread() -> None:
    """By its length alone."""
    header, _ = CODEC.pack(TELLINGS[0])
    assert what_is_wrong([header, bytes(MAX_MESSAGE_BYTES + 1)]) == "size"


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_nothing_is_unpickled_even_with_the_token(tmp_path: Path) -> None:
    """Pickles, nested lists and lengths that lie are shapes we don't know."""
    mark = tmp_path / "mark"
    for payload in (
        pickle.dumps(Bomb(mark)),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode(["SnapshotPart", -1, 0, 0, 0, "device", b""]),
        msgspec.msgpack.encode(["Delta", 1, 1, [["device", b"", b""]] * 9]),
    ):
        assert what_is_wrong(CODEC._frames.sign(payload, b"pcl-kv-tell")) == "shape"
    assert not mark.exists()


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_no_bytes_do_harm(frames: list[bytes]) -> None:
    """Whatever comes is a message or a `MalformedMessage`."""
    with pytest.raises(MalformedMessage):
        CODEC.unpack_telling(frames)


def test_a_short_token_is_refused() -> None:
    """It would protect nothing."""
    with pytest.raises(ValueError, match="at least 16 bytes"):
        KvCodec(b"short")
