"""What verifiers and draft workers say to each other, and how it is packed.

A verifier asks once an engine step, a worker answers with what may come next:

    AskBatch    for each session: tokens appended since the last ask, and how many are wanted
    DraftBatch  for each session: tokens that may follow its first `base` tokens

A worker answers at once with what it knows. What a draft model is still to say comes in further
answers to the same step, as it is generated.

On the wire a message is msgpack of the struct, as an array, in `kvstore/signed_frames.py`'s
envelope. Token ids travel as little-endian int32: msgpack integers take ten times as long to read.
Sizes and ranges are checked, and what does not pass is a `MalformedMessage` that says why.
"""

from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kvstore.errors import MalformedMessage
from kvstore.signed_frames import SignedFrames, decoded

PROTOCOL: Final = 2
"""One more whenever an older peer would misunderstand a message."""
SPOKEN: Final = (2,)
"""Versions this code can read and write, oldest first."""

MAX_SESSIONS: Final = 4096
"""In one message."""
MAX_CONTEXT_TOKENS: Final = 1 << 20
MAX_DRAFT_TOKENS: Final = 256
MAX_DOMAIN_BYTES: Final = 32
MAX_NEXT_MS: Final = 60_000

_ASK: Final = b"pcl-ask"
_DRAFT: Final = b"pcl-draft"

Tokens = NDArray[np.int32]

SessionId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Length = Annotated[int, Meta(ge=0, le=MAX_CONTEXT_TOKENS)]
Packed = Annotated[bytes, Meta(max_length=4 * MAX_CONTEXT_TOKENS)]


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One session's part of an ask.

    Attributes:
        session: The verifier's number for one sequence; never used again for another.
        base: Tokens of the context that the worker has been sent before. 0: here is all of it.
        appended: Packed tokens that follow the first `base`.
        wanted: Draft tokens wanted now. 0: only take the tokens in.
        domain: Sharing domain of the session, as the front door says; sent with `base` 0, and
            then known. Empty: nothing of this session may be shared.
    """

    session: SessionId
    base: Length
    appended: Packed
    wanted: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)]
    domain: Annotated[bytes, Meta(max_length=MAX_DOMAIN_BYTES)] = b""


class AskBatch(msgspec.Struct, frozen=True, array_like=True):
    """What a verifier asks one worker in one engine step.

    Attributes:
        step: Counts the asks of this verifier; comes back with the answer.
        asks: One a session.
        forget: Sessions that are over.
    """

    step: Annotated[int, Meta(ge=0)]
    asks: Annotated[list[Ask], Meta(max_length=MAX_SESSIONS)]
    forget: Annotated[list[SessionId], Meta(max_length=MAX_SESSIONS)] = []


class Draft(msgspec.Struct, frozen=True, array_like=True):
    """One session's part of an answer.

    Attributes:
        session: As asked.
        base: Length of the context that the tokens follow.
        tokens: Packed draft tokens; may be more than were wanted, or none.
        source: Where they come from, a draft kind of the config.
        confidence: Part of them that the worker expects to be right, 0-1; 0 where it says nothing.
        next_ms: When the worker expects to say more to this ask, in ms. 0: this is all.
        token_ms: Between further tokens, in ms. 0: not known.
    """

    session: SessionId
    base: Length
    tokens: Annotated[bytes, Meta(max_length=4 * MAX_DRAFT_TOKENS)]
    source: Annotated[str, Meta(max_length=32)]
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    next_ms: Annotated[int, Meta(ge=0, le=MAX_NEXT_MS)] = 0
    token_ms: Annotated[int, Meta(ge=0, le=MAX_NEXT_MS)] = 0


class DraftBatch(msgspec.Struct, frozen=True, array_like=True):
    """A worker's answer to one `AskBatch`, or a part of it.

    Attributes:
        step: The ask's.
        drafts: One for each session that is known; in further answers, for those with news.
        unknown: Sessions whose whole context the worker needs to be sent again.
        more: Whether further answers to this step may follow.
    """

    step: Annotated[int, Meta(ge=0)]
    drafts: Annotated[list[Draft], Meta(max_length=MAX_SESSIONS)]
    unknown: Annotated[list[SessionId], Meta(max_length=MAX_SESSIONS)] = []
    more: bool = False


class Codec:
    """Packs and unpacks messages under one cluster token.

    Args:
        token: The cluster token, the same on every verifier and draft worker.

    Raises:
        ValueError: The token is too short.
    """

    def __init__(self, token: bytes) -> None:
        self._frames = SignedFrames(token, b"PCL", SPOKEN)

    def pack(self, message: AskBatch | DraftBatch, version: int = PROTOCOL) -> list[bytes]:
        """The two frames of a message."""
        direction = _ASK if isinstance(message, AskBatch) else _DRAFT
        return self._frames.sign(_encoder.encode(message), direction, version)

    def unpack_ask(self, frames: list[bytes]) -> AskBatch:
        """The ask in two frames.

        Raises:
            MalformedMessage: They hold none that this cluster's token signed, or one of a
                version that is not spoken here.
        """
        return decoded(_ask_decoder, self._frames.checked(frames, _ASK))

    def unpack_drafts(self, frames: list[bytes]) -> DraftBatch:
        """The answer in two frames.

        Raises:
            MalformedMessage: As `unpack_ask`.
        """
        return decoded(_draft_decoder, self._frames.checked(frames, _DRAFT))


def pack_tokens(tokens: Tokens) -> bytes:
    """Token ids as they travel."""
    return tokens.astype("<i4", copy=False).tobytes()


def unpack_tokens(packed: bytes, vocab_size: int) -> Tokens:
    """Token ids as they came.

    Args:
        packed: Little-endian int32.
        vocab_size: All ids must be below.

    Returns:
        [tokens] int32, read-only.

    Raises:
        MalformedMessage: The bytes are not whole tokens, or one is not in the vocabulary.
    """
    if len(packed) % 4:
        raise MalformedMessage("tokens", "they are not whole int32 values")
    tokens: Tokens = np.frombuffer(packed, dtype="<i4")
    if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocab_size):
        raise MalformedMessage("vocabulary", f"a token is outside the vocabulary of {vocab_size}")
    return tokens


_encoder = msgspec.msgpack.Encoder()
_ask_decoder = msgspec.msgpack.Decoder(AskBatch)
_draft_decoder = msgspec.msgpack.Decoder(DraftBatch)
