"""What draft workers tell each other about texts: the entries of one Redis stream.

    paceline:{cluster}:ngrams:{format}:{tokenizer}      the stream
    paceline:{cluster}:ngrams-forgotten:{tokenizer}     domain -> time, wall clock, seconds

An entry has one field: `texts` holds a `TextBatch`, `forget` a `Forget`. Format and tokenizer
are in the key, so that nobody meets token ids that mean something else, and again in each
batch. Nothing is unpickled; what does not pass is an `InvalidRecord`.
"""

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kvstore.errors import InvalidRecord

Tokens = NDArray[np.int32]

FORMAT: Final = 1
"""One more whenever an older reader would misunderstand an entry; it is part of the key."""
ENTRY_TOKENS: Final = 4096
"""Most tokens of one entry."""
ENTRY_TEXTS: Final = 256
MAX_ENTRY_BYTES: Final = 4 * ENTRY_TOKENS + 64 * ENTRY_TEXTS
MAX_DOMAIN_BYTES: Final = 32
SHORTEST_TEXT: Final = 3
"""Tokens; fewer have no context and continuation."""
TEXTS: Final = b"texts"
FORGET: Final = b"forget"

Domain = Annotated[bytes, Meta(max_length=MAX_DOMAIN_BYTES)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Word = Annotated[str, Meta(max_length=256)]


class Text(msgspec.Struct, frozen=True, array_like=True):
    """One text, or a part of a long one.

    Attributes:
        born_s: When it was finished, wall clock.
        tokens: Packed, little-endian int32.
    """

    born_s: Time
    tokens: Annotated[bytes, Meta(min_length=4 * SHORTEST_TEXT, max_length=4 * ENTRY_TOKENS)]


class TextBatch(msgspec.Struct, frozen=True, array_like=True):
    """Texts of one domain that one worker has seen finished.

    Attributes:
        format: `FORMAT`.
        fingerprint: Of the tokenizer.
        origin: The worker.
        number: Counts the batches of this worker, from 1.
        domain: Whose texts they are.
        texts: In the order in which they were finished.
    """

    format: int
    fingerprint: Word
    origin: Word
    number: Annotated[int, Meta(ge=1, le=(1 << 62))]
    domain: Domain
    texts: Annotated[list[Text], Meta(min_length=1, max_length=ENTRY_TEXTS)]


class Forget(msgspec.Struct, frozen=True, array_like=True):
    """Texts of a domain that were finished by then are to be removed everywhere.

    Attributes:
        domain: Whose.
        until_s: Wall clock.
    """

    domain: Domain
    until_s: Time


@dataclass(frozen=True)
class NgramKeys:
    """The Redis keys of one cluster and tokenizer.

    Attributes:
        cluster: Its name.
        fingerprint: Of the tokenizer.
    """

    cluster: str
    fingerprint: str

    @property
    def stream(self) -> str:
        return f"paceline:{self.cluster}:ngrams:{FORMAT}:{self.fingerprint[:32]}"

    @property
    def forgotten(self) -> str:
        return f"paceline:{self.cluster}:ngrams-forgotten:{self.fingerprint[:32]}"

    @property
    def corpora(self) -> str:
        return f"paceline:{self.cluster}:corpora:{self.fingerprint[:32]}"

    def corpus_piece(self, corpus_id: str, piece: int) -> str:
        return f"paceline:{self.cluster}:corpus:{self.fingerprint[:32]}:{corpus_id}:{piece}"


def pack(tokens: Tokens) -> bytes:
    """Token ids as they are kept."""
    return tokens.astype("<i4", copy=False).tobytes()


def unpack(packed: bytes, vocab_size: int) -> Tokens:
    """Token ids as they were kept.

    Raises:
        InvalidRecord: The bytes are not whole tokens, or one is not in the vocabulary.
    """
    if len(packed) % 4:
        raise InvalidRecord("its tokens are not whole int32 values")
    tokens: Tokens = np.frombuffer(packed, dtype="<i4")
    if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocab_size):
        raise InvalidRecord(f"a token is outside the vocabulary of {vocab_size}")
    return tokens


def encode(record: TextBatch | Forget) -> bytes:
    """The value of an entry's field."""
    return _encoder.encode(record)


def decode(fields: dict[bytes, bytes], fingerprint: str) -> TextBatch | Forget:
    """What an entry says. The tokens are looked at by `unpack` only.

    Raises:
        InvalidRecord: It is too large, no record, or about another tokenizer.
    """
    if len(fields) != 1:
        raise InvalidRecord("it has not one field")
    ((name, value),) = fields.items()
    if len(value) > MAX_ENTRY_BYTES:
        raise InvalidRecord(f"it has more than {MAX_ENTRY_BYTES} bytes")
    try:
        if name == FORGET:
            return _forget_decoder.decode(value)
        if name != TEXTS:
            raise InvalidRecord("its field is none of ours")
        batch = _batch_decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRecord(f"it is no record ({error})") from error
    if (batch.format, batch.fingerprint) != (FORMAT, fingerprint):
        raise InvalidRecord("it is of another format or tokenizer")
    return batch


_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(TextBatch)
_forget_decoder = msgspec.msgpack.Decoder(Forget)
