"""Texts that an operator gives to all draft workers: manuals, code, forms, in Redis.

    paceline:{cluster}:corpora:{tokenizer}             name -> Corpus, msgpack
    paceline:{cluster}:corpus:{tokenizer}:{id}:{n}     its tokens, little-endian int32, in pieces

A corpus belongs to one sharing domain, or to everybody. It has no end by itself: it stays
until it is removed, and all of them together are bounded, so that every worker has room.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
import redis
from msgspec import Meta

from kvstore.errors import CorpusRefused, InvalidRecord
from kvstore.ngram_records import Domain, NgramKeys, Time, Tokens, pack, unpack

EVERYBODY: Final = b""
"""The domain of a corpus that all requests may be drafted from."""
MAX_CORPORA: Final = 256
MAX_NAME: Final = 128
PIECE_TOKENS: Final = 1 << 18
MAX_ENTRY_BYTES: Final = 1024
BYTES_PER_TOKEN: Final = 24.5
"""In a worker's index, with the overlap of a long text's parts."""


class Corpus(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one corpus without its text.

    Attributes:
        name: The operator's.
        corpus_id: Names its pieces; another each time that it is added.
        domain: Whose it is, or `EVERYBODY`.
        tenant: The tenant's name, for people; "" for everybody.
        tokens: How many.
        added_at_s: Wall clock.
    """

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    corpus_id: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    domain: Domain
    tenant: Annotated[str, Meta(max_length=64)]
    tokens: Annotated[int, Meta(ge=1, le=1 << 30)]
    added_at_s: Time


def max_tokens(memory_bytes: int) -> int:
    """Most tokens that all corpora may have together, where a worker gives them so much memory."""
    return int(memory_bytes / BYTES_PER_TOKEN)


def add_corpus(
    client: redis.Redis,
    keys: NgramKeys,
    name: str,
    tokens: Tokens,
    *,
    domain: bytes,
    tenant: str,
    max_tokens: int,
) -> Corpus:
    """Adds a corpus, or replaces the one of this name.

    Args:
        client: Of the cluster's Redis.
        keys: Of the cluster and its tokenizer.
        name: What it is listed by.
        tokens: [n] int32.
        domain: Whose it is, or `EVERYBODY`.
        tenant: The tenant's name, or "".
        max_tokens: Most tokens that all corpora may have together.

    Raises:
        CorpusRefused: It has no text, too long a name, or there is no room for it.
        redis.RedisError: Redis did not take it.
    """
    if not 0 < len(name) <= MAX_NAME:
        raise CorpusRefused(f"a corpus' name has 1 to {MAX_NAME} characters")
    if len(tokens) < 3:
        raise CorpusRefused(f"`{name}` has {len(tokens)} tokens: nothing follows anything")
    known = {corpus.name: corpus for corpus in list_corpora(client, keys)}
    others = sum(corpus.tokens for corpus in known.values() if corpus.name != name)
    if others + len(tokens) > max_tokens:
        raise CorpusRefused(
            f"`{name}` has {len(tokens):,} tokens, and the others {others:,}; together they may "
            f"have {max_tokens:,} (drafting.split.workers.ngram.corpus_mib)"
        )
    if name not in known and len(known) >= MAX_CORPORA:
        raise CorpusRefused(f"there are {MAX_CORPORA} corpora already; remove one")
    corpus = Corpus(name, secrets.token_hex(8), domain, tenant, len(tokens), time.time())
    for piece, start in enumerate(range(0, len(tokens), PIECE_TOKENS)):
        packed = pack(tokens[start : start + PIECE_TOKENS])
        client.set(keys.corpus_piece(corpus.corpus_id, piece), packed)
    client.hset(keys.corpora, name, _encoder.encode(corpus))
    if name in known:
        _delete_pieces(client, keys, known[name])
    return corpus


def remove_corpus(client: redis.Redis, keys: NgramKeys, name: str) -> bool:
    """Removes a corpus; workers drop it within a second or two.

    Returns:
        Whether there was one of this name.
    """
    found = [corpus for corpus in list_corpora(client, keys) if corpus.name == name]
    for corpus in found:
        _delete_pieces(client, keys, corpus)
    return bool(client.hdel(keys.corpora, name))


def remove_corpora_of(client: redis.Redis, keys: NgramKeys, domain: bytes) -> int:
    """Removes all corpora of one domain.

    Returns:
        How many.
    """
    of_domain = [corpus for corpus in list_corpora(client, keys) if corpus.domain == domain]
    for corpus in of_domain:
        remove_corpus(client, keys, corpus.name)
    return len(of_domain)


def list_corpora(client: redis.Redis, keys: NgramKeys) -> tuple[Corpus, ...]:
    """All corpora by the time they were added; entries that are none are left out."""
    entries: Any = client.hgetall(keys.corpora)
    found = []
    for value in entries.values():
        with suppress(msgspec.MsgspecError):
            if len(value) <= MAX_ENTRY_BYTES:
                found.append(_decoder.decode(value))
    return tuple(sorted(found, key=lambda corpus: (corpus.added_at_s, corpus.name)))


def read_corpus(
    client: redis.Redis, keys: NgramKeys, corpus: Corpus, vocab_size: int
) -> Iterator[Tokens]:
    """The pieces of a corpus, one after the other.

    Raises:
        InvalidRecord: A piece is missing, too large, or holds no tokens of the vocabulary.
    """
    for piece, start in enumerate(range(0, corpus.tokens, PIECE_TOKENS)):
        expected = min(PIECE_TOKENS, corpus.tokens - start)
        # A range, so that a giant value is not fetched to be refused.
        packed: Any = client.getrange(
            keys.corpus_piece(corpus.corpus_id, piece), 0, 4 * PIECE_TOKENS
        )
        if len(packed) != 4 * expected:
            raise InvalidRecord(f"piece {piece} of corpus `{corpus.name}` is not {expected} tokens")
        yield unpack(packed, vocab_size)


def _delete_pieces(client: redis.Redis, keys: NgramKeys, corpus: Corpus) -> None:
    for piece in range(-(-corpus.tokens // PIECE_TOKENS)):
        client.delete(keys.corpus_piece(corpus.corpus_id, piece))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Corpus)
