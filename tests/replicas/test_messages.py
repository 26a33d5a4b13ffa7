"""What verifiers and draft workers say arrives as it was said, or not at all."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import MalformedMessage
from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.messages import (
    MAX_CONTEXT_TOKENS,
    MAX_DRAFT_TOKENS,
    MAX_SESSIONS,
    PROTOCOL,
    Ask,
    AskBatch,
    Codec,
    Draft,
    DraftBatch,
    pack_tokens,
    unpack_tokens,
)

CODEC = Codec(b"sixteen bytes or more")
ASK = AskBatch(7, [Ask(1, 0, pack_tokens(np.arange(5, dtype=np.int32)), 4)], [2, 3])
ANSWER = DraftBatch(7, [Draft(1, 5, pack_tokens(np.arange(4, dtype=np.int32)), "model")], [9])

sessions = st.integers(0, (1 << 63) - 1)
lengths = st.integers(0, MAX_CONTEXT_TOKENS)
steps = st.integers(0, (1 << 63) - 1)
ask_batches = st.builds(
    AskBatch,
    steps,
    st.lists(
        st.builds(Ask, sessions, lengths, st.binary(max_size=64), st.integers(0, MAX_DRAFT_TOKENS)),
        max_size=5,
    ),
    st.lists(sessions, max_size=5),
)
draft_batches = st.builds(
    DraftBatch,
    steps,
    st.lists(
        st.builds(Draft, sessions, lengths, st.binary(max_size=64), st.text(max_size=32)),
        max_size=5,
    ),
    st.lists(sessions, max_size=5),
)


def signed(payload: bytes) -> list[bytes]:
    """The frames of a payload that one who has the token made by hand."""
    return CODEC._frames.sign(payload, b"pcl-ask")


@given(ask_batches)
def test_an_ask_arrives_as_it_was_said(message: AskBatch) -> None:
    """Packed and unpacked, an ask is itself again."""
    assert CODEC.unpack_ask(CODEC.pack(message)) == message


@given(draft_batches)
def test_an_answer_arrives_as_it_was_said(message: DraftBatch) -> None:
    """Packed and unpacked, an answer is itself again."""
    assert CODEC.unpack_drafts(CODEC.pack(message)) == message


def test_every_flipped_bit_is_noticed() -> None:
    """No single bit of a message can change on its way, in the header or the payload."""
    frames = CODEC.pack(ASK)
    for place, frame in enumerate(frames):
        for bit in range(8 * len(frame)):
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 1 << bit % 8
            changed = [*frames]
            changed[place] = bytes(damaged)
            with pytest.raises(MalformedMessage) as refused:
                CODEC.unpack_ask(changed)
            assert refused.value.what in {"frames", "version", "token"}


def test_another_token_is_not_believed() -> None:
    """A cluster's parts don't take another cluster's messages."""
    with pytest.raises(MalformedMessage) as refused:
        Codec(b"another token of a cluster").unpack_ask(CODEC.pack(ASK))
    assert refused.value.what == "token"


def test_a_message_cannot_be_sent_back_as_an_answer() -> None:
    """What was signed in one direction is not believed in the other."""
    for unpack, message in ((CODEC.unpack_drafts, ASK), (CODEC.unpack_ask, ANSWER)):
        with pytest.raises(MalformedMessage) as refused:
            unpack(CODEC.pack(message))
        assert refused.value.what == "token"


def test_a_foreign_version_is_named() -> None:
    """Who speaks a version that is not known here learns of it by its number."""
    with pytest.raises(MalformedMessage, match="version 9") as refused:
        CODEC.unpack_ask(CODEC.pack(ASK, version=9))
    assert refused.value.what == "version"


def test_a_signature_counts_for_its_version_only() -> None:
    """Nobody on the way can make a message one of another version."""
    header, payload = CODEC.pack(ASK, version=9)
    with pytest.raises(MalformedMessage) as refused:
        CODEC.unpack_ask([header[:3] + bytes([PROTOCOL]) + header[4:], payload])
    assert refused.value.what == "token"


BAD_PAYLOADS = {
    "nothing": b"",
    "levels without end": b"\x91" * 10_000 + b"\xc0",
    "a promise of 4 GB": b"\xdd\xff\xff\xff\xff",
    "a map": msgspec.msgpack.encode({"step": 1, "asks": [], "forget": []}),
    "a negative step": msgspec.msgpack.encode([-1, [], []]),
    "a base that is too long": msgspec.msgpack.encode(
        [1, [[1, MAX_CONTEXT_TOKENS + 1, b"", 0]], []]
    ),
    "too many wanted": msgspec.msgpack.encode([1, [[1, 0, b"", MAX_DRAFT_TOKENS + 1]], []]),
    "a session beyond 63 bits": msgspec.msgpack.encode([1, [[1 << 63, 0, b"", 0]], []]),
    "too many sessions": msgspec.msgpack.encode([1, [], [0] * (MAX_SESSIONS + 1)]),
    "text for tokens": msgspec.msgpack.encode([1, [[1, 0, "abcd", 0]], []]),
    "a number for a list": msgspec.msgpack.encode([1, 2, 3]),
}


@pytest.mark.parametrize("payload", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS.keys())
def test_even_who_has_the_token_must_keep_the_shape(payload: bytes) -> None:
    """A signed payload is checked like any other: types, sizes, ranges, depth."""
    with pytest.raises(MalformedMessage) as refused:
        CODEC.unpack_ask(signed(payload))
    assert refused.value.what == "shape"


def test_a_giant_is_refused_before_it_is_read() -> None:
    """No payload beyond the limit is hashed or decoded."""
    frames = [CODEC.pack(ASK)[0], bytes(MAX_MESSAGE_BYTES + 1)]
    with pytest.raises(MalformedMessage) as refused:
        CODEC.unpack_ask(frames)
    assert refused.value.what == "size"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


def test_a_pickle_is_only_malformed(tmp_path: Path) -> None:
    """Even with the token nobody makes a peer run code."""
    marker = tmp_path / "ran"
    trap = pickle.dumps(Trap(marker))
    pickle.loads(trap)
    assert marker.exists(), "the trap works"
    marker.unlink()
    for frames in (signed(trap), [trap, trap], [CODEC.pack(ASK)[0], trap]):
        with pytest.raises(MalformedMessage):
            CODEC.unpack_ask(frames)
    assert not marker.exists()


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_no_frames_surprise_a_reader(frames: list[bytes]) -> None:
    """Whatever comes, a reader gets a message or the one error."""
    for unpack in (CODEC.unpack_ask, CODEC.unpack_drafts):
        with pytest.raises(MalformedMessage):
            unpack(frames)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_no_signed_bytes_surprise_a_reader(payload: bytes) -> None:
    """Signed noise is a message by chance, or the one error."""
    try:
        message = CODEC.unpack_ask(signed(payload))
    except MalformedMessage as error:
        assert error.what == "shape"
    else:
        assert isinstance(message, AskBatch)


@given(st.lists(st.integers(0, 999), max_size=50))
def test_tokens_arrive_as_they_were(tokens: list[int]) -> None:
    """Token ids survive the way, whole and in order."""
    packed = pack_tokens(np.array(tokens, dtype=np.int32))
    assert unpack_tokens(packed, 1000).tolist() == tokens


@pytest.mark.parametrize(
    ("packed", "what"),
    [
        (b"\x00\x00\x00", "tokens"),
        (pack_tokens(np.array([1000], dtype=np.int32)), "vocabulary"),
        (pack_tokens(np.array([0, -1], dtype=np.int32)), "vocabulary"),
    ],
)
def test_tokens_that_mean_nothing_are_refused(packed: bytes, what: str) -> None:
    """Half a token, or one outside the vocabulary, never becomes an index."""
    with pytest.raises(MalformedMessage) as refused:
        unpack_tokens(packed, 1000)
    assert refused.value.what == what


def test_a_short_token_is_refused() -> None:
    """A secret that can be guessed protects nothing."""
    with pytest.raises(ValueError, match="16 bytes"):
        Codec(b"short")
