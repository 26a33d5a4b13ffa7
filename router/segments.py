"""Tokens of texts that were seen before: the turns of a conversation come again with each one.

A tokenizer splits a text at its special tokens first, and what stands between two of them
becomes the same tokens whatever is around it. So a chat's prompt can be tokenized turn by
turn, and only the new ones cost anything. Not every tokenizer is that simple (some treat the
beginning of a text differently): `Segments.suits` tries it out, and where it does not hold the
text is tokenized as a whole.

The texts themselves are not kept, only a digest and the token ids.
"""

import hashlib
import re
import threading
from collections import OrderedDict
from typing import Any, Final

import numpy as np

from kvstore.hashing import Tokens

MAX_TOKENS: Final = 1 << 22
"""16 MiB of token ids."""
SHORTEST_CHARS: Final = 32
"""A text shorter than this is tokenized faster than it is found."""
_PROBES: Final = (
    "Hello there,",
    " two  words\n",
    "\n\t x\r\n",
    "日本語 ñ é",
    "a",
    "1234 -5.6e7",
    "don't",
)


class Segments:
    """Tokenizes texts piece by piece, and remembers. Safe to use from several threads.

    Args:
        backend: A `tokenizers.Tokenizer`.
        max_tokens: Most that are remembered.

    Attributes:
        suits: Whether pieces give the tokens of the whole.
    """

    def __init__(self, backend: Any, max_tokens: int = MAX_TOKENS) -> None:
        self._backend = backend
        self._max_tokens = max_tokens
        self._known: OrderedDict[bytes, Tokens] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()
        special = {
            token.content: number
            for number, token in backend.get_added_tokens_decoder().items()
            if token.special
            and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        }
        self._special = {
            text: np.array([number], dtype=np.int32) for text, number in special.items()
        }
        longest_first = sorted(map(re.escape, special), key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(longest_first)})") if special else None
        self.suits = self._cut is not None and all(map(self._is_same, self._probes()))

    def __len__(self) -> int:
        return self._tokens

    def encode(self, text: str) -> Tokens:
        """Tokens of a text, no special ones added; only where `suits`.

        Returns:
            [tokens] int32.
        """
        assert self._cut is not None
        pieces = [piece for piece in self._cut.split(text) if piece]
        found = [self._lookup(piece) for piece in pieces]
        missing = [piece for piece, tokens in zip(pieces, found, strict=True) if tokens is None]
        # Not as a batch, which would wake threads for a few short texts.
        new = iter([self._encode(piece) for piece in missing])
        parts = [tokens if tokens is not None else next(new) for tokens in found]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def _lookup(self, piece: str) -> Tokens | None:
        if (special := self._special.get(piece)) is not None:
            return special
        if len(piece) < SHORTEST_CHARS:
            return None
        key = _key(piece)
        with self._lock:
            if (tokens := self._known.get(key)) is not None:
                self._known.move_to_end(key)
        return tokens

    def _encode(self, piece: str) -> Tokens:
        (encoding,) = self._backend.encode_batch_fast([piece], add_special_tokens=False)
        tokens: Tokens = np.array(encoding.ids, dtype=np.int32)
        if len(piece) < SHORTEST_CHARS or len(tokens) > self._max_tokens:
            return tokens
        with self._lock:
            if (key := _key(piece)) not in self._known:
                self._known[key] = tokens
                self._tokens += len(tokens)
            while self._tokens > self._max_tokens:
                _, gone = self._known.popitem(last=False)
                self._tokens -= len(gone)
        return tokens

    def _probes(self) -> list[str]:
        marks = list(self._special)[:4]
        probes = ["".join(f"{mark}{text}" for text in _PROBES) for mark in marks]
        probes += [f"{text}{mark}{text}" for text in _PROBES for mark in marks]
        return [*probes, "".join(marks * 2)]

    def _is_same(self, text: str) -> bool:
        whole = self._backend.encode(text, add_special_tokens=False).ids
        return bool(self.encode(text).tolist() == whole)


def _key(piece: str) -> bytes:
    return hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=16).digest()
