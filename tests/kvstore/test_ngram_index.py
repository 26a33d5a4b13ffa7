"""The n-gram index against a slow, obvious model; its bounds; its domains."""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.ngram_index import TOKEN_BYTES, IndexSettings, NgramIndex, Tokens
from kvstore.ngram_kernels import DOUBT, MAX_CANDIDATES, MAX_STEPS

LONGEST = 12
PLENTY = IndexSettings(1 << 20, longest=LONGEST, ttl_s=1000.0, half_life_s=10.0, least=0.0)
A, B = b"a", b"b"
SEED = 7


def tokens(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


def random_texts(count: int, length: int, vocabulary: int, seed: int = SEED) -> list[Tokens]:
    """Texts without a pattern."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocabulary, length, dtype=np.int32) for _ in range(count)]


@dataclass
class SlowIndex:
    """Looks at every place of every text of a domain, each time."""

    texts: list[tuple[bytes, list[int], float]] = field(default_factory=list)

    def add(self, domain: bytes, text: list[int], born_s: float) -> None:
        if len(text) > PLENTY.shortest:
            self.texts.append((domain, text, born_s))

    def find(self, domain: bytes, context: list[int], wanted: int, now_s: float) -> list[int]:
        places: list[tuple[int, list[int], float]] = []  # match length, what followed, time
        for of, text, born_s in reversed(self.texts):
            if of != domain or now_s - born_s > PLENTY.ttl_s:
                continue
            for end in range(len(text) - 2, -1, -1):
                matched = 0
                while (
                    matched < min(LONGEST, len(context), end + 1)
                    and text[end - matched] == context[-1 - matched]
                ):
                    matched += 1
                if matched >= PLENTY.shortest:
                    places.append((matched, text[end + 1 :], born_s))
        if not places:
            return []
        best = max(matched for matched, _, _ in places)
        voters = [(rest, born_s) for matched, rest, born_s in places if matched == best]
        newest_s = max(born_s for _, born_s in voters)
        votes = [(rest, 0.5 ** ((newest_s - at_s) / PLENTY.half_life_s)) for rest, at_s in voters]
        draft: list[int] = []
        while len(draft) < wanted:
            place = len(draft)
            weights: dict[int, float] = {}
            for rest, weight in votes:
                if place < len(rest):
                    weights[rest[place]] = weights.get(rest[place], 0.0) + weight
            if not weights:
                break
            top = max(weights.values())
            # Of equal ones the latest text's.
            token = next(
                rest[place]
                for rest, _ in votes
                if place < len(rest) and weights[rest[place]] >= top * (1 - 1e-9)
            )
            votes = [(r, w) for r, w in votes if place < len(r) and r[place] == token]
            draft.append(token)
        return draft


text = st.lists(st.integers(0, 3), min_size=1, max_size=18)


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.tuples(st.sampled_from([A, B]), text, st.integers(0, 40)), max_size=5),
    context=st.lists(st.integers(0, 3), max_size=16),
    wanted=st.integers(1, 8),
    domain=st.sampled_from([A, B]),
)
def test_it_finds_what_the_slow_model_finds(
    texts: list[tuple[bytes, list[int], int]], context: list[int], wanted: int, domain: bytes
) -> None:
    """Longest match first, votes that fade with age, each domain for itself."""
    index, model = NgramIndex(PLENTY), SlowIndex()
    for of, ids, born_s in sorted(texts, key=lambda entry: entry[2]):
        index.add(of, tokens(*ids), float(born_s))
        model.add(of, ids, float(born_s))
    assert sum(len(ids) for _, ids, _ in texts) <= MAX_STEPS + 26
    found = index.find(domain, tokens(*context), wanted, 40.0)
    expected = model.find(domain, context, wanted, 40.0)
    places = sum(len(ids) for of, ids, _ in texts if of == domain)
    if places <= MAX_CANDIDATES:
        assert found.tokens.tolist() == expected
    else:  # not all of them have a vote
        assert bool(len(found.tokens)) == bool(expected)
    assert 0.0 <= found.confidence <= 1.0


def test_the_longest_match_wins_and_its_places_vote() -> None:
    """Two places of a long match outvote one, however many short matches say otherwise."""
    index = NgramIndex(PLENTY)
    for _ in range(9):
        index.add(A, tokens(8, 3, 4, 9), 0.0)
    index.add(A, tokens(1, 2, 3, 4, 5, 6), 0.0)
    index.add(A, tokens(1, 2, 3, 4, 5, 7), 0.0)
    index.add(A, tokens(1, 2, 3, 4, 0, 7), 0.0)
    found = index.find(A, tokens(1, 2, 3, 4), 1, 0.0)
    assert (found.tokens.tolist(), found.matched) == ([5], 4)
    assert found.confidence == pytest.approx(2 / 3 * 3 / (3 + DOUBT / 4))


def test_newer_places_have_more_of_a_vote() -> None:
    """One that is a half-life younger counts twice."""
    index = NgramIndex(PLENTY)
    index.add(A, tokens(1, 2, 5), 0.0)
    index.add(A, tokens(1, 2, 6), 10.0)
    found = index.find(A, tokens(1, 2), 1, 10.0)
    assert found.tokens.tolist() == [6]
    assert found.confidence == pytest.approx(2 / 3 * 1.5 / (1.5 + DOUBT / 2))


def test_a_draft_ends_where_its_chance_does() -> None:
    """Places that part ways end the draft before its chance falls below what is wanted."""
    doubtful = NgramIndex(IndexSettings(1 << 20, least=0.4))
    for last in (5, 6):
        doubtful.add(A, tokens(1, 2, 3, 4, last, 9), 0.0)
    assert doubtful.find(A, tokens(1, 2), 4, 0.0).tokens.tolist() == [3, 4]


def test_old_texts_are_not_drafted_from() -> None:
    """After `ttl_s` a text is as good as gone."""
    index = NgramIndex(PLENTY)
    index.add(A, tokens(1, 2, 3), 5.0)
    assert index.find(A, tokens(1, 2), 1, 1_004.0).tokens.tolist() == [3]
    assert index.find(A, tokens(1, 2), 1, 1_006.0).tokens.tolist() == []


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 60), min_size=1, max_size=60),
    capacity=st.sampled_from([256, 300, 777]),
)
def test_the_oldest_texts_make_room_and_those_that_stay_are_whole(
    lengths: list[int], capacity: int
) -> None:
    """However the ring turns, what is held is the end of what was added, and no more than fits."""
    # MAX part: a document is at most an eighth of the ring.
    index = NgramIndex(IndexSettings(int(capacity * TOKEN_BYTES) + 1, longest=8))
    added: list[list[int]] = []
    for number, length in enumerate(lengths):
        length = min(length, capacity // 8)
        ids = [(number * 61 + place) % 1009 for place in range(length)]
        index.add(A, tokens(*ids), float(number))
        added.append(ids)
        held = [kept.tolist() for kept in index.texts(A)]
        assert held == added[len(added) - len(held) :]
        stats = index.stats()
        assert stats.tokens == sum(len(kept) for kept in held) <= capacity
        assert stats.inserted_tokens == stats.tokens + stats.evicted_tokens
        assert held[-1] == ids
    found = index.find(A, tokens(*added[-1][:2]), 1, 60.0)
    assert found.tokens.tolist() == [added[-1][2]]


def test_memory_stays_at_its_bound_and_old_entries_go_first() -> None:
    """Unique text without end: the bytes held don't change, evictions count, the newest is found
    and the oldest is not.
    """
    index = NgramIndex(IndexSettings(1 << 20))
    bytes_before = index.stats().held_bytes
    assert bytes_before <= 1 << 20
    texts = random_texts(2_000, 100, 50_000)
    for number, one in enumerate(texts):
        index.add(A, one, float(number))
    stats = index.stats()
    assert stats.held_bytes == bytes_before
    assert stats.held_bytes / stats.tokens < 25
    assert stats.evicted_tokens == stats.inserted_tokens - stats.tokens > 100_000
    assert index.find(A, texts[-1][:50], 4, 2_000.0).tokens.tolist() == texts[-1][50:54].tolist()
    assert not len(index.find(A, texts[0][:50], 4, 2_000.0).tokens)


def test_what_is_hot_stays() -> None:
    """A text that is drafted from again and again outlives all the unique text around it."""
    index = NgramIndex(IndexSettings(1 << 18))
    hot, *cold = random_texts(1_500, 100, 50_000)
    index.add(A, hot, 0.0)
    for number, one in enumerate(cold):
        index.add(A, one, float(number))
        found = index.find(A, hot[:20], 4, float(number))
        assert found.tokens.tolist() == hot[20:24].tolist()
    stats = index.stats()
    assert stats.evicted_tokens > 100_000
    assert stats.kept_tokens >= 1_000


def test_a_ring_full_of_hot_text_takes_new_text() -> None:
    """Being of use earns a text one more turn, not for ever at the cost of all others."""
    index = NgramIndex(IndexSettings(1 << 16))
    texts = random_texts(200, 100, 50_000)
    for number, one in enumerate(texts):
        index.add(A, one, float(number))
        for earlier in texts[max(0, number - 40) : number + 1]:
            index.find(A, earlier[:20], 4, float(number))
        assert index.find(A, one[:20], 4, float(number)).tokens.tolist() == one[20:24].tolist()


def test_a_long_text_is_found_across_its_parts() -> None:
    """It is kept as several documents that overlap by the longest context."""
    index = NgramIndex(IndexSettings(1 << 22))
    (one,) = random_texts(1, 20_000, 50_000)
    index.add(A, one, 0.0)
    for place in range(30, 19_990, 101):
        found = index.find(A, one[:place], 1, 0.0)
        assert found.tokens.tolist() == [one[place]]
        assert found.matched >= 23


def test_it_takes_arrays_as_they_come() -> None:
    """Read-only, strided, or views of something else."""
    index = NgramIndex(PLENTY)
    text = np.repeat(tokens(1, 2, 3, 4, 5), 2)[::2]
    text.flags.writeable = False
    index.add(A, text, 0.0)
    index.add(A, np.frombuffer(tokens(6, 7, 8).tobytes(), dtype="<i4"), 0.0)
    assert index.find(A, text[:2], 1, 0.0).tokens.tolist() == [3]
    assert index.find(A, tokens(9, 6, 7), 1, 0.0).tokens.tolist() == [8]


def test_what_is_known_of_a_texts_beginning_need_not_be_added() -> None:
    """A conversation adds its last turn only; drafts are the same as if all of it were added."""
    index = NgramIndex(IndexSettings(1 << 22))
    (turns,) = random_texts(1, 12_000, 50_000)
    index.add(A, turns[:10_000], 0.0)  # in several parts
    known = index.known(A, turns, 1.0)
    assert known == 10_000 - 24
    index.add(A, turns[known:], 1.0)
    assert index.stats().tokens < 12_200
    for place in range(9_900, 11_900, 37):
        found = index.find(A, turns[:place], 4, 1.0)
        assert found.tokens.tolist() == turns[place : place + 4].tolist()
        assert found.matched == 24
    assert index.known(A, turns, 2.0) == 12_000, "all of it, the second time"
    assert index.known(B, turns, 2.0) == 0
    assert index.known(A, turns[1_000:], 2.0) == 11_000, "wherever it began"
    assert index.known(A, turns[:40], 2.0) == 0, "too little to matter"


def test_what_will_be_gone_soon_is_not_known() -> None:
    """A text that is said again late in its time is added again."""
    index = NgramIndex(PLENTY)
    (text,) = random_texts(1, 200, 50_000)
    index.add(A, text, 0.0)
    assert index.known(A, text, PLENTY.ttl_s / 2) == 200
    assert index.known(A, text, PLENTY.ttl_s / 2 + 1) == 0


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.lists(st.integers(0, 2), max_size=120), max_size=4),
    shared=st.integers(0, 120),
    after=st.lists(st.integers(0, 2), max_size=60),
)
def test_only_what_is_there_is_known(
    before: list[list[int]], shared: int, after: list[int]
) -> None:
    """Every token that is left out stands in some text, behind the same longest context."""
    index = NgramIndex(PLENTY)
    for ids in before:
        index.add(A, tokens(*ids), 0.0)
    text = [*(before[0][:shared] if before else []), *after]
    known = index.known(A, tokens(*text), 1.0)
    assert 0 <= known <= len(text)
    held = [kept.tolist() for kept in index.texts(A)]
    for place in range(1, known):
        part = text[max(0, place - LONGEST) : place + 1]
        assert any(
            part == kept[start : start + len(part)] for kept in held for start in range(len(kept))
        )


def test_erasing_a_domain_removes_its_tokens_and_nothing_else() -> None:
    """Not only from lookups: the ring holds them no more. Texts of later stay."""
    index = NgramIndex(PLENTY)
    index.add(A, tokens(11, 12, 13), 1.0)
    index.add(B, tokens(11, 12, 14), 1.0)
    index.add(A, tokens(11, 12, 15), 3.0)
    assert index.erase(A, until_s=2.0) == 1
    assert 13 not in index._ring
    assert index.find(A, tokens(11, 12), 1, 3.0).tokens.tolist() == [15]
    assert index.erase(A, until_s=3.0) == 1
    assert index.find(A, tokens(11, 12), 1, 3.0).tokens.tolist() == []
    assert index.find(B, tokens(11, 12), 1, 3.0).tokens.tolist() == [14]
    assert index.erase(A, until_s=3.0) == 0
    assert index.stats().domains == 1


@settings(max_examples=100, deadline=None)
@given(
    mine=st.lists(text, max_size=4),
    theirs=st.lists(text, min_size=1, max_size=6),
    context=text,
    wanted=st.integers(1, 8),
)
def test_other_domains_change_nothing(
    mine: list[list[int]], theirs: list[list[int]], context: list[int], wanted: int
) -> None:
    """What is found in a domain is the same with and without the texts of another."""
    alone, together = NgramIndex(PLENTY), NgramIndex(PLENTY)
    for place in range(max(len(mine), len(theirs))):
        if place < len(theirs):
            together.add(A, tokens(*theirs[place]), 0.0)
        if place < len(mine):
            alone.add(B, tokens(*mine[place]), 0.0)
            together.add(B, tokens(*mine[place]), 0.0)
    one = alone.find(B, tokens(*context), wanted, 0.0)
    other = together.find(B, tokens(*context), wanted, 0.0)
    assert one.tokens.tolist() == other.tokens.tolist()
    assert (one.confidence, one.matched) == (other.confidence, other.matched)


def test_many_domains_leave_nothing_behind() -> None:
    """A domain whose last text was evicted takes no memory."""
    index = NgramIndex(IndexSettings(1 << 16))
    for number in range(5_000):
        index.add(b"%d" % number, tokens(1, 2, 3, 4, 5, 6, 7, 8), float(number))
    stats = index.stats()
    assert stats.domains == stats.documents == len(index._numbers) == len(index._domain_names)
    assert stats.domains < 200


def test_lookups_while_another_thread_writes_never_mix_domains() -> None:
    """Texts of two domains in disjoint vocabularies: whatever the moment, no draft holds the
    other's tokens, and each one is what followed.
    """
    index = NgramIndex(IndexSettings(1 << 16))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            start = number * 37 % 500
            mine = np.arange(start, start + 60, dtype=np.int32)
            index.add(A if number % 2 else B, mine + (1_000 if number % 2 else 0), 0.0)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20_000):
            start = number * 7 % 540
            offset = 1_000 if number % 2 else 0
            context = np.arange(start, start + 6, dtype=np.int32) + offset
            found = index.find(A if number % 2 else B, context, 8, 0.0)
            expected = np.arange(start + 6, start + 14) + offset
            assert found.tokens.tolist() == expected[: len(found.tokens)].tolist()
    finally:
        stop.set()
        writer.join()
    stats = index.stats()
    assert stats.evicted_tokens > 0
    assert stats.hits > 0
