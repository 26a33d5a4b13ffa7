"""The inner loops of the n-gram index, compiled by numba. No state is kept here.

Positions of the token ring are chained by the hash of the 2, 4 and 8 tokens that end there, as
LZ77 compressors do: `heads[order, bucket]` names the latest position of a bucket, `earlier`
of each position the one before it. A chain is a hint. What it leads to is compared token by
token, and its document looked up: a bucket may hold several contexts, several domains, and
places that were written over since.

They are compiled when this module is imported, or loaded from numba's cache, so that no ask
waits for a compiler. The writer's release the GIL. A lookup keeps it: to get it back from a thread
that inserts would take longer than the lookup.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kvstore.compiled import compiled

ORDERS: Final = (2, 4, 8)
"""Lengths of the contexts that are chained, tokens. Longer matches are found by comparing."""
MAX_STEPS: Final = 64
"""Links of one chain that are followed: the latest of a frequent context are as good as all."""
MAX_CANDIDATES: Final = 32
"""Places of one match length that have a vote, the latest."""
DOUBT: Final = 2.0
"""Over the match length in tokens: the weight of "none of them" in the vote."""

_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_FOLD: Final = np.uint64(29)
_HALF: Final = np.uint64(32)


def _bucket(tokens: Any, end: Any, length: Any, seed: Any, buckets: Any) -> Any:
    """Where the chain of the `length` tokens that end at `end` begins."""
    value = seed
    for place in range(end - length + 1, end + 1):
        value = (value ^ np.uint64(tokens[place])) * _PRIME
        value ^= value >> _FOLD
    return np.int64(((value >> _HALF) * np.uint64(buckets)) >> _HALF)


_bucket = compiled(None, inline="always")(_bucket)


def _document_of(position: Any, first: Any, end: Any, starts: Any) -> Any:
    """The last document that starts at `position` or before, or -1."""
    low, high = first, end
    while low < high:
        middle = (low + high) >> 1
        if starts[middle % len(starts)] <= position:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > first else -1


_document_of = compiled(None)(_document_of)


def _write(document: Any, slot: Any, seed: Any, ring: Any, heads: Any, earlier: Any) -> Any:
    capacity = len(ring)
    buckets = heads.shape[1]
    for place in range(len(document)):
        ring[slot] = document[place]
        for order in range(len(ORDERS)):
            if place + 1 >= ORDERS[order]:
                bucket = _bucket(document, place, ORDERS[order], seed, buckets)
                earlier[order, slot] = heads[order, bucket]
                heads[order, bucket] = np.uint32(slot + 1)
            else:
                earlier[order, slot] = np.uint32(0)
        slot += 1
        if slot == capacity:
            slot = 0
    return slot


write_document: Callable[..., int] = compiled(
    "int64(int32[::1], int64, uint64, int32[::1], uint32[:, ::1], uint32[:, ::1])"
)(_write)
"""Writes a document into the ring, and chains its contexts.

Args:
    document: [tokens] int32, shorter than the ring.
    slot: Where in the ring it begins.
    seed: uint64 of its domain, mixed into every hash.
    ring: [capacity] int32.
    heads: [orders, buckets] uint32, slots plus one; 0 is none.
    earlier: [orders, capacity] uint32, likewise.

Returns:
    The slot behind it.
"""


def _find(
    context: Any,
    shortest: Any,
    longest: Any,
    domain: Any,
    seed: Any,
    born_after_s: Any,
    half_life_s: Any,
    least: Any,
    next_position: Any,
    first_document: Any,
    end_document: Any,
    ring: Any,
    heads: Any,
    earlier: Any,
    starts: Any,
    lengths: Any,
    domains: Any,
    born_s: Any,
    draft: Any,
    facts: Any,
) -> Any:
    capacity = len(ring)
    size = len(context)
    limit = min(size, longest)
    positions = np.empty(MAX_CANDIDATES, np.int64)
    ends = np.empty(MAX_CANDIDATES, np.int64)
    weights = np.empty(MAX_CANDIDATES, np.float64)
    votes = np.empty(MAX_CANDIDATES, np.int32)
    count = 0
    best = 0
    oldest = end_document
    for order in range(len(ORDERS) - 1, -1, -1):
        length = ORDERS[order]
        if length > size or length > longest or first_document == end_document:
            continue
        tail = starts[first_document % len(starts)]
        link = heads[order, _bucket(context, size - 1, length, seed, heads.shape[1])]
        last = next_position
        for _ in range(MAX_STEPS):
            if link == 0 or (count == MAX_CANDIDATES and best == limit):
                break  # No more, or none that would have a vote.
            slot = np.int64(link) - 1
            link = earlier[order, slot]
            position = next_position - 1 - (next_position - 1 - slot) % capacity
            if position < tail or position >= last:
                if last == next_position and position < tail:
                    continue  # being written just now, and not yet to be seen
                break  # written over: from here on it is another chain
            last = position
            matched = 0
            at: Any = slot
            while matched < limit and ring[at] == context[size - 1 - matched]:
                matched += 1
                at = at - 1 if at > 0 else capacity - 1
            if matched < length or matched < best:
                continue
            document = _document_of(position, first_document, end_document, starts)
            if document < 0:
                continue
            entry = document % len(starts)
            start = starts[entry]
            # Where the next one starts: that number is near by, a length is one more miss.
            if document + 1 < end_document:
                end = starts[(document + 1) % len(starts)]
            else:
                end = start + lengths[entry]
            if domains[entry] != domain or position + 1 >= end or born_s[entry] < born_after_s:
                continue
            matched = min(matched, position - start + 1)
            if matched < length or matched < shortest or matched < best:
                continue
            if matched > best:
                best = matched
                count = 0
            if count < MAX_CANDIDATES:
                positions[count] = position
                ends[count] = end
                weights[count] = born_s[entry]
                count += 1
                oldest = min(oldest, document) if count > 1 else document
        if count:
            break
    facts[1] = best
    facts[2] = oldest
    facts[3] = positions[0] if count else -1
    if count == 0:
        return 0
    newest_s = weights[:count].max()
    total = 0.0
    for i in range(count):
        weights[i] = 0.5 ** ((newest_s - weights[i]) / half_life_s)
        total += weights[i]
    chance = total / (total + DOUBT / best)
    expected = 0.0
    drafted = 0
    while drafted < len(draft):
        total = 0.0
        for i in range(count):
            ahead = positions[i] + 1 + drafted
            votes[i] = ring[ahead % capacity] if ahead < ends[i] else -1
            if votes[i] >= 0:
                total += weights[i]
        top = 0.0
        token = np.int32(-1)
        for i in range(count):
            if votes[i] < 0:
                continue
            weight = 0.0
            for j in range(count):
                if votes[j] == votes[i]:
                    weight += weights[j]
            if weight > top * 1.000000001:
                top = weight
                token = votes[i]
        if token < 0:
            break
        chance *= top / total
        if chance < least:
            break
        draft[drafted] = token
        drafted += 1
        expected += chance
        kept = 0
        for i in range(count):
            if votes[i] == token:
                positions[kept] = positions[i]
                ends[kept] = ends[i]
                weights[kept] = weights[i]
                kept += 1
        count = kept
    facts[0] = expected / drafted if drafted else 0.0
    return drafted


find_draft: Callable[..., int] = compiled(
    "int64(int32[::1], int64, int64, int64, uint64, float64, float64, float64, int64, int64, "
    "int64, int32[::1], uint32[:, ::1], uint32[:, ::1], int64[::1], int32[::1], int64[::1], "
    "float64[::1], int32[::1], float64[::1])",
    nogil=False,
)(_find)
"""What followed the longest context that is here, by the vote of the places where it stood.

The places of the longest match vote on each token of the draft; those that are outvoted leave.
A place's vote halves with each `half_life_s` that its document is older than the newest of
them. The chance of a draft's first tokens is the product of their shares of the vote, and
"none of them" has a vote, too: `DOUBT` / match length.

Args:
    context: [tokens] int32, at least the last `longest` of it.
    shortest: Matches of fewer tokens don't count.
    longest: Longer matches are as good.
    domain: Only documents of this one are looked at.
    seed: uint64 of the domain.
    born_after_s: Older documents don't count.
    half_life_s: See above.
    least: The draft ends before its chance is less.
    next_position: Tokens ever written.
    first_document: The oldest that is here.
    end_document: One past the latest.
    ring, heads, earlier: As `write_document` takes them.
    starts, lengths, domains, born_s: [documents] of each document, at its number modulo.
    draft: [wanted] int32, written.
    facts: [4] float64, written: mean chance of the draft's tokens, 0-1; match length; the
        oldest document that had a vote; a position in the latest one.

Returns:
    Tokens of the draft.
"""


def _known(
    text: Any,
    domain: Any,
    seed: Any,
    born_after_s: Any,
    next_position: Any,
    first_document: Any,
    end_document: Any,
    ring: Any,
    heads: Any,
    earlier: Any,
    starts: Any,
    lengths: Any,
    domains: Any,
    born_s: Any,
    used: Any,
) -> Any:
    capacity = len(ring)
    order = len(ORDERS) - 1
    length = ORDERS[order]
    best = 0
    best_entry = 0
    if len(text) < length or first_document == end_document:
        return 0
    tail = starts[first_document % len(starts)]
    link = heads[order, _bucket(text, length - 1, length, seed, heads.shape[1])]
    last = next_position
    for _ in range(MAX_STEPS):
        if link == 0:
            break
        slot = np.int64(link) - 1
        link = earlier[order, slot]
        position = next_position - 1 - (next_position - 1 - slot) % capacity
        if position < tail or position >= last:
            break
        last = position
        document = _document_of(position, first_document, end_document, starts)
        if document < 0:
            continue
        entry = document % len(starts)
        begin = position - length + 1
        end = starts[entry] + lengths[entry]
        if domains[entry] != domain or begin < starts[entry] or born_s[entry] < born_after_s:
            continue
        matched = 0
        while (
            matched < len(text)
            and begin + matched < end
            and ring[(begin + matched) % capacity] == text[matched]
        ):
            matched += 1
        if matched > best:
            best = matched
            best_entry = entry
    if best >= length:
        used[best_entry] = 1
    return best


known_beginning: Callable[..., int] = compiled(
    "int64(int32[::1], int64, uint64, float64, int64, int64, int64, int32[::1], uint32[:, ::1], "
    "uint32[:, ::1], int64[::1], int32[::1], int64[::1], float64[::1], int32[::1])"
)(_known)
"""How many tokens a text has in common, from its first on, with one that is here.

For the thread that writes. Arguments as in `find_draft`; the document that has the most is
marked in `used`.
"""
