"""What followed a context wherever it stood before: n-grams of many texts, in bounded memory.

An idea of REST (He et al., "Retrieval-Based Speculative Decoding", 2023) for text that comes
and goes: not a datastore on disk but a ring of the latest tokens, about 23 bytes each, whose
2-, 4- and 8-grams are chained by their hash (`ngram_kernels.py`).

    ring       | doc 7 ........ | doc 8 .... | doc 9 ......... |  free  | doc 5 .. | doc 6 .. |
    chains     each position -> the one before it with the same 2, 4, 8 tokens
    documents  start, length, domain, time, whether it was of use

A new document takes the place of the oldest. One that was drafted from since it was written is
written again instead, once for each time that it was of use: what is hot stays.

One thread writes, one other may look things up, and neither waits for the other. A lookup is
true to what it read if no document that it used has been given up meanwhile; else it is
dropped, and counted as torn. The writer gives up documents before it writes over them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvstore.ngram_kernels import ORDERS, find_draft, known_beginning, write_document

Tokens = NDArray[np.int32]

BUCKETS_PER_TOKEN: Final = 0.5
TOKENS_PER_DOCUMENT: Final = 32
"""Documents shorter than this, on average, fill the table of documents before the ring."""
DOCUMENT_BYTES: Final = 8 + 4 + 8 + 8 + 4
TOKEN_BYTES: Final = (
    4 + len(ORDERS) * 4 * (1 + BUCKETS_PER_TOKEN) + DOCUMENT_BYTES / TOKENS_PER_DOCUMENT
)
"""Memory of one retained token, bytes."""
MIN_CAPACITY: Final = 256
"""Tokens."""
PARTS: Final = 8
"""A document that is longer than this part of the ring is written as several."""
MAX_PART_TOKENS: Final = 4096
"""Written at once; a lookup does not see a document before it is whole."""
LEAST_KNOWN: Final = 32
"""Tokens; to leave out fewer saves nothing."""

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Found:
    """A draft of the index.

    Attributes:
        tokens: [n] int32; [0] where nothing is known.
        confidence: Expected part of them that is right, 0-1, by the vote of the places that
            the draft was taken from.
        matched: Tokens of the context that stood there, too.
    """

    tokens: Tokens
    confidence: float
    matched: int


@dataclass(frozen=True)
class IndexSettings:
    """How large an index is, and what it believes.

    Attributes:
        memory_bytes: Most that it takes.
        shortest: Matches of fewer tokens don't count, 2 or more.
        longest: Longer matches are as good, tokens.
        ttl_s: Older documents are not drafted from, seconds.
        half_life_s: Time in which a place's vote halves, seconds.
        least: A draft ends before the chance that all of it is right falls below, 0-1.
    """

    memory_bytes: int
    shortest: int = 2
    longest: int = 24
    ttl_s: float = 3600.0
    half_life_s: float = 600.0
    least: float = 0.05

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return max(MIN_CAPACITY, int(self.memory_bytes / TOKEN_BYTES))


@dataclass(frozen=True)
class IndexStats:
    """What an index holds now, and what it did since its start.

    Attributes:
        tokens: Held now.
        documents: Held now.
        domains: That have documents here.
        held_bytes: Memory of its arrays, full or not.
        inserted_tokens: Written, those that were written again included.
        evicted_tokens: Given up for new ones.
        kept_tokens: Written again because they had been of use.
        lookups: Asked.
        hits: Of those, that found something.
        torn: Of those, whose documents were given up meanwhile.
    """

    tokens: int
    documents: int
    domains: int
    held_bytes: int
    inserted_tokens: int
    evicted_tokens: int
    kept_tokens: int
    lookups: int
    hits: int
    torn: int


class NgramIndex:
    """N-grams of texts in sharing domains. `add` and `erase` by one thread, `find` by one other.

    Args:
        settings: Its size and what it believes.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        capacity = settings.capacity
        documents = max(8, capacity // TOKENS_PER_DOCUMENT)
        buckets = max(64, int(capacity * BUCKETS_PER_TOKEN))
        self._ring = np.zeros(capacity, dtype=np.int32)
        self._heads = np.zeros((len(ORDERS), buckets), dtype=np.uint32)
        self._earlier = np.zeros((len(ORDERS), capacity), dtype=np.uint32)
        self._starts = np.zeros(documents, dtype=np.int64)
        self._lengths = np.zeros(documents, dtype=np.int32)
        self._of = np.zeros(documents, dtype=np.int64)
        self._born_s = np.zeros(documents, dtype=np.float64)
        self._used = np.zeros(documents, dtype=np.int32)
        self._next = 0  # tokens ever written
        self._first_document = self._end_document = 0
        self._erasures = 0
        self._numbers: dict[bytes, int] = {}
        self._documents_of: dict[int, int] = {}
        self._domain_names: dict[int, bytes] = {}
        self._next_number = 1
        self._evicted_tokens = self._kept_tokens = 0
        self._lookups = self._hits = self._torn = 0

    def add(self, domain: bytes, tokens: Tokens, born_s: float) -> None:
        """Takes in a text; the oldest ones make room for it.

        Args:
            domain: Whose lookups may find it.
            tokens: [n] int32, none below 0.
            born_s: Its time, by the clock that `find` is given.
        """
        most = min(MAX_PART_TOKENS, len(self._ring) // PARTS)
        overlap = min(self._settings.longest, most // 2)
        start = 0
        while len(tokens) - start > self._settings.shortest:
            part = tokens[start : start + most]
            self._make_room(len(part), spare=len(part), now_s=born_s)
            self._write(domain, part, born_s)
            if start + most >= len(tokens):
                break
            start += most - overlap

    def known(self, domain: bytes, tokens: Tokens, born_s: float) -> int:
        """How much of a text's beginning is here already, and need not be added again.

        Of a conversation that is the turns before, of a form its instructions. What is older than
        half of `ttl_s` does not count: it will be gone soon. By the thread that writes.

        Returns:
            Tokens to leave out: all, or up to where the longest context before the first new
            token begins; 0 where less than `LEAST_KNOWN` are known.
        """
        number, longest = self._numbers.get(domain), self._settings.longest
        left_out = 0
        while number is not None and len(tokens) - left_out >= LEAST_KNOWN + longest:
            matched = known_beginning(
                np.array(tokens[left_out:], dtype=np.int32),
                number,
                _seed(number),
                born_s - self._settings.ttl_s / 2,
                self._next,
                self._first_document,
                self._end_document,
                self._ring,
                self._heads,
                self._earlier,
                self._starts,
                self._lengths,
                self._of,
                self._born_s,
                self._used,
            )
            if left_out + matched == len(tokens):
                return len(tokens)
            if matched < LEAST_KNOWN + longest:
                break
            left_out += matched - longest
        return left_out

    def find(self, domain: bytes, context: Tokens, wanted: int, now_s: float) -> Found:
        """What may follow a context, by the texts of one domain.

        Args:
            domain: Texts of others are not looked at.
            context: [tokens] int32; its end is looked for.
            wanted: Tokens wanted, 1 or more.
            now_s: By the clock of `add`.
        """
        self._lookups += 1
        number = self._numbers.get(domain)
        if number is None or len(context) < self._settings.shortest:
            return Found(_NOTHING, 0.0, 0)
        erasures = self._erasures
        first, end, next_position = self._first_document, self._end_document, self._next
        draft: Tokens = np.empty(wanted, dtype=np.int32)
        facts = np.empty(4, dtype=np.float64)
        drafted = find_draft(
            np.array(context[-self._settings.longest :], dtype=np.int32),
            self._settings.shortest,
            self._settings.longest,
            number,
            _seed(number),
            now_s - self._settings.ttl_s,
            self._settings.half_life_s,
            self._settings.least,
            next_position,
            first,
            end,
            self._ring,
            self._heads,
            self._earlier,
            self._starts,
            self._lengths,
            self._of,
            self._born_s,
            draft,
            facts,
        )
        if not drafted:
            return Found(_NOTHING, 0.0, 0)
        oldest = int(facts[2])
        if oldest < self._first_document or erasures != self._erasures:
            self._torn += 1
            return Found(_NOTHING, 0.0, 0)
        self._hits += 1
        self._used[self._document_at(int(facts[3]), first, end) % len(self._used)] = 1
        return Found(draft[:drafted], float(facts[0]), int(facts[1]))

    def erase(self, domain: bytes, until_s: float) -> int:
        """Removes the texts of a domain that are not younger than `until_s`, tokens and all.

        Returns:
            How many documents.
        """
        entries = self._entries_of(domain)
        number = self._numbers.get(domain, 0)
        old = entries[self._born_s[entries] <= until_s]
        for entry in old:
            self._of[entry] = 0
            self._erasures += 1
            self._ring[self._slots(entry)] = 0
            self._leave(number)
        return len(old)

    def texts(self, domain: bytes) -> Iterator[Tokens]:
        """A copy of each document of a domain, oldest first."""
        for entry in self._entries_of(domain):
            yield self._ring[self._slots(entry)]

    def stats(self) -> IndexStats:
        """From any thread."""
        first, end = self._first_document, self._end_document
        arrays = (
            *(self._ring, self._heads, self._earlier, self._starts, self._lengths),
            *(self._of, self._born_s, self._used),
        )
        start = int(self._starts[first % len(self._starts)]) if first < end else self._next
        return IndexStats(
            tokens=max(0, self._next - start),
            documents=end - first,
            domains=len(self._numbers),
            held_bytes=sum(array.nbytes for array in arrays),
            inserted_tokens=self._next,
            evicted_tokens=self._evicted_tokens,
            kept_tokens=self._kept_tokens,
            lookups=self._lookups,
            hits=self._hits,
            torn=self._torn,
        )

    def _write(self, domain: bytes, tokens: Tokens, born_s: float) -> None:
        number = self._numbers.get(domain)
        if number is None:
            number = self._next_number
            self._next_number += 1
            self._documents_of[number] = 0
            self._domain_names[number] = domain
            self._numbers[domain] = number
        write_document(
            np.array(tokens, dtype=np.int32),  # a copy: the caller's may be read-only
            self._next % len(self._ring),
            _seed(number),
            self._ring,
            self._heads,
            self._earlier,
        )
        entry = self._end_document % len(self._starts)
        self._starts[entry] = self._next
        self._lengths[entry] = len(tokens)
        self._of[entry] = number
        self._born_s[entry] = born_s
        self._used[entry] = 0
        self._documents_of[number] += 1
        # Only now is it there for lookups.
        self._next += len(tokens)
        self._end_document += 1

    def _make_room(self, wanted: int, spare: int, now_s: float) -> None:
        """Gives up the oldest documents until `wanted` tokens fit.

        Those that were of use are written again behind the others, up to `spare` tokens for
        each call: a ring full of hot text takes new text all the same.
        """
        born_after_s = now_s - self._settings.ttl_s
        entries = len(self._starts)
        again: list[tuple[bytes, Tokens, float]] = []
        returning = 0
        while self._first_document < self._end_document and (
            self._held() + wanted + returning > len(self._ring)
            or self._end_document - self._first_document + len(again) >= entries
        ):
            entry = self._first_document % entries
            length, number = int(self._lengths[entry]), int(self._of[entry])
            born_s = float(self._born_s[entry])
            hot = number and self._used[entry] and born_s >= born_after_s
            if hot and returning + length <= spare:
                text = self._ring[self._slots(entry)]
                again.append((self._domain_names[number], text, born_s))
                returning += length
            else:
                self._evicted_tokens += length
            self._first_document += 1
            self._leave(number)
        for domain, text, born_s in again:
            self._kept_tokens += len(text)
            self._write(domain, text, born_s)

    def _leave(self, number: int) -> None:
        """One document of a domain is gone; a domain without any is, too."""
        if number not in self._documents_of:
            return
        self._documents_of[number] -= 1
        if not self._documents_of[number]:
            del self._documents_of[number]
            del self._numbers[self._domain_names.pop(number)]

    def _held(self) -> int:
        if self._first_document == self._end_document:
            return 0
        return self._next - int(self._starts[self._first_document % len(self._starts)])

    def _entries_of(self, domain: bytes) -> NDArray[np.int64]:
        """Places of a domain's documents in the table, oldest first."""
        number = self._numbers.get(domain)
        entries = np.arange(self._first_document, self._end_document) % len(self._starts)
        return entries[self._of[entries] == number] if number is not None else entries[:0]

    def _slots(self, entry: "int | np.int64") -> NDArray[np.int64]:
        """Where in the ring a document's tokens are."""
        start = int(self._starts[entry])
        return np.arange(start, start + int(self._lengths[entry])) % len(self._ring)

    def _document_at(self, position: int, first: int, end: int) -> int:
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            if self._starts[middle % len(self._starts)] <= position:
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1)


def _seed(number: int) -> np.uint64:
    """Mixed into the hashes of a domain's contexts."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
