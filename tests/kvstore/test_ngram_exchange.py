"""Texts between workers over a real Redis: what arrives, what survives, what is forgotten."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fault_proxy import FaultProxy
from redis_server import RedisServer
from waiting import until

from kvstore.errors import InvalidRecord
from kvstore.ngram_exchange import ExchangeSettings, NgramExchange
from kvstore.ngram_forgetting import forget_domain
from kvstore.ngram_outbox import OUTBOX_TOKENS
from kvstore.ngram_records import (
    ENTRY_TOKENS,
    FORMAT,
    TEXTS,
    NgramKeys,
    Text,
    TextBatch,
    Tokens,
    decode,
    encode,
    pack,
)
from kvstore.redis_client import RedisSettings

VOCABULARY = 50_000
KEYS = NgramKeys("one", "f" * 64)
A, B = b"a" * 32, b"b" * 32


def tokens(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


class Store:
    """Remembers what it is told, as an index would."""

    def __init__(self) -> None:
        self.texts: list[tuple[bytes, list[int], float]] = []
        self.threads: set[int] = set()

    def known(self, domain: bytes, text: Tokens, born_s: float) -> int:
        return 0

    def add(self, domain: bytes, text: Tokens, born_s: float) -> None:
        self.threads.add(threading.get_ident())
        self.texts.append((domain, text.tolist(), born_s))

    def erase(self, domain: bytes, until_s: float) -> int:
        before = len(self.texts)
        self.texts = [entry for entry in self.texts if entry[0] != domain or entry[2] > until_s]
        return before - len(self.texts)

    def of(self, domain: bytes) -> list[list[int]]:
        return [text for of, text, _ in self.texts if of == domain]


class Worker:
    """One worker's end, with a store of its own."""

    def __init__(self, name: str, server: RedisSettings, **changes: Any) -> None:
        self.store = Store()
        settings = ExchangeSettings(KEYS, name, VOCABULARY, ttl_s=1_000.0, stream_tokens=1 << 20)
        self.exchange = NgramExchange(replace(settings, **changes), server, self.store)

    def has(self, *texts: list[int], domain: bytes = A) -> bool:
        return self.store.of(domain) == list(texts)


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Starts workers, and ends them after the test."""
    with ExitStack() as running:

        def start_one(name: str, server: RedisSettings, **changes: Any) -> Worker:
            worker = Worker(name, server, **changes)
            running.enter_context(worker.exchange)
            return worker

        yield start_one


def batch(origin: str, number: int, *texts: list[int], **changes: Any) -> TextBatch:
    """A batch as a worker would write it."""
    fields = {
        "format": FORMAT,
        "fingerprint": KEYS.fingerprint,
        "origin": origin,
        "number": number,
        "domain": A,
        "texts": [Text(time.time(), pack(tokens(*text))) for text in texts],
    }
    return TextBatch(**{**fields, **changes})


def test_a_text_is_indexed_here_and_told_to_the_others(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """In its domain, once, and by the exchange's thread alone."""
    one, two = start("one", redis_server.settings), start("two", redis_server.settings)
    one.exchange.publish(A, tokens(1, 2, 3))
    one.exchange.publish(B, tokens(4, 5, 6))
    until(lambda: two.has([1, 2, 3]) and two.has([4, 5, 6], domain=B))
    until(lambda: one.exchange.stats().published == 2)
    two.exchange.publish(A, tokens(7, 8, 9))
    until(lambda: one.has([1, 2, 3], [7, 8, 9]) and two.has([1, 2, 3], [7, 8, 9]))
    for worker in (one, two):
        assert len(worker.store.threads) == 1
        assert threading.get_ident() not in worker.store.threads
        stats = worker.exchange.stats()
        assert (stats.connected, stats.garbage, stats.twice, stats.missing) == (True, 0, 0, 0)


def test_a_new_worker_reads_what_was_told_before(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """In the order in which it was told, many pages of it."""
    one = start("one", redis_server.settings)
    texts = [[*range(number, number + 100)] for number in range(4_000)]
    for text in texts:
        one.exchange.publish(A, tokens(*text))
        if text[0] % 800 == 0:
            until(lambda: not one.exchange._new)
    until(lambda: one.exchange.stats().published == 4_000)
    assert one.exchange.stats().dropped == 0
    with redis_server.client() as client:
        assert client.xlen(KEYS.stream) > 64
    late = start("late", redis_server.settings)
    until(lambda: late.has(*texts))


def test_a_long_text_travels_in_parts_that_overlap(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """No entry is larger than it may be, and no context of up to the overlap is cut."""
    one, two = start("one", redis_server.settings), start("two", redis_server.settings)
    text = [number % VOCABULARY for number in range(3 * ENTRY_TOKENS)]
    one.exchange.publish(A, tokens(*text))
    until(lambda: bool(two.store.texts) and two.store.texts[-1][1][-1] == text[-1])
    parts = two.store.of(A)
    assert max(len(part) for part in parts) <= ENTRY_TOKENS
    whole = parts[0]
    for part in parts[1:]:
        overlap = whole.index(part[0])
        assert whole[overlap:] == part[: len(whole) - overlap]
        whole = whole[:overlap] + part
    assert whole == text


def test_the_stream_is_bounded(redis_server: RedisServer, start: Callable[..., Worker]) -> None:
    """However much is told, Redis holds about what it may; who was slow counts what is missing."""
    one = start("one", redis_server.settings, stream_tokens=16 * ENTRY_TOKENS)
    long = np.arange(ENTRY_TOKENS, dtype=np.int32)
    for _ in range(60):
        one.exchange.publish(A, long)
    until(lambda: one.exchange.stats().published == 60)
    with redis_server.client() as client:
        assert 16 <= client.xlen(KEYS.stream) <= 20
        assert 0 < client.ttl(KEYS.stream) <= 1_000
        assert client.memory_usage(KEYS.stream) < 2 * 16 * 4 * ENTRY_TOKENS


def test_batches_that_come_twice_or_never_are_counted(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """A number again is not taken in again; a number that is left out is missing until it comes."""
    two = start("two", redis_server.settings)
    with redis_server.client() as client:
        for number in (5, 5, 6, 9, 6, 8):
            value = encode(batch("elsewhere", number, [number, 1, 2]))
            client.xadd(KEYS.stream, {TEXTS: value})
        until(lambda: two.has(*([number, 1, 2] for number in (5, 6, 9, 8))))
    stats = two.exchange.stats()
    assert (stats.twice, stats.missing, stats.received) == (2, 1, 4)


GARBAGE: dict[str, dict[bytes, bytes]] = {
    "noise": {TEXTS: b"\xff\x00noise"},
    "another field": {b"other": b""},
    "two fields": {TEXTS: b"", b"other": b""},
    "a giant": {TEXTS: bytes(1 << 20)},
    "another tokenizer": {TEXTS: encode(batch("x", 1, [1, 2, 3], fingerprint="g" * 64))},
    "another format": {TEXTS: encode(batch("x", 1, [1, 2, 3], format=FORMAT + 1))},
    "a long domain": {TEXTS: encode(batch("x", 1, [1, 2, 3], domain=bytes(33)))},
    "no texts": {TEXTS: encode(batch("x", 1))},
    "half a token": {
        TEXTS: encode(batch("x", 1, texts=[Text(time.time(), bytes(14))])),
    },
    "no token": {TEXTS: encode(batch("x", 1, [1, 2, VOCABULARY]))},
    "a negative token": {TEXTS: encode(batch("x", 1, [1, 2, -3]))},
    "no time": {TEXTS: encode(batch("x", 1, texts=[Text(float("nan"), bytes(12))]))},
    "a forgetting of nonsense": {b"forget": b"\x92\xc0\xc0"},
}


@pytest.mark.parametrize("fields", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_in_the_stream_is_dropped_and_counted(
    redis_server: RedisServer, start: Callable[..., Worker], fields: dict[bytes, bytes]
) -> None:
    """What is told behind it arrives."""
    two = start("two", redis_server.settings)
    with redis_server.client() as client:
        client.xadd(KEYS.stream, fields)  # type: ignore[arg-type]
        client.xadd(KEYS.stream, {TEXTS: encode(batch("elsewhere", 1, [7, 8, 9]))})
    until(lambda: bool(two.store.of(A)))
    assert two.has([7, 8, 9])
    assert two.exchange.stats().garbage == 1


def test_a_key_that_is_no_stream_is_survived(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """Own texts are indexed all the same, and all goes on when the key is right again."""
    with redis_server.client() as client:
        client.set(KEYS.stream, "something else")
        one, two = start("one", redis_server.settings), start("two", redis_server.settings)
        one.exchange.publish(A, tokens(1, 2, 3))
        until(lambda: one.has([1, 2, 3]) and one.exchange.stats().failures > 0)
        assert not one.exchange.stats().connected
        client.delete(KEYS.stream)
    until(lambda: two.has([1, 2, 3]))


def test_a_redis_that_comes_back_empty_is_survived(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """While it is gone own texts are indexed; afterwards they and new ones reach the others."""
    one, two = start("one", redis_server.settings), start("two", redis_server.settings)
    one.exchange.publish(A, tokens(1, 2, 3))
    until(lambda: two.has([1, 2, 3]))
    redis_server.kill()
    one.exchange.publish(A, tokens(4, 5, 6))
    until(lambda: one.has([1, 2, 3], [4, 5, 6]))
    until(lambda: not (one.exchange.stats().connected or two.exchange.stats().connected))
    redis_server.start()
    until(lambda: two.has([1, 2, 3], [4, 5, 6]))
    two.exchange.publish(A, tokens(7, 8, 9))
    until(lambda: one.has([1, 2, 3], [4, 5, 6], [7, 8, 9]))
    assert two.exchange.stats().twice == 0


def test_a_stream_that_starts_over_is_read_from_its_beginning(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """Even where its ids are lower than those that were read before; it is counted."""
    two = start("two", redis_server.settings)
    with redis_server.client() as client:
        value = encode(batch("elsewhere", 1, [1, 2, 3]))
        client.xadd(KEYS.stream, {TEXTS: value}, id="99999999999999-0")
        until(lambda: two.has([1, 2, 3]))
    redis_server.kill()
    until(lambda: not two.exchange.stats().connected)
    redis_server.start()
    with redis_server.client() as client:
        client.xadd(KEYS.stream, {TEXTS: encode(batch("elsewhere", 2, [4, 5, 6]))})
    until(lambda: two.has([1, 2, 3], [4, 5, 6]))
    assert two.exchange.stats().restarts == 1


def test_cut_slow_and_silent_connections_cost_time_only(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """Every text arrives exactly once, whatever the network did to its sender."""
    expected: list[list[int]] = []
    with FaultProxy(redis_server.port) as proxy:
        through = RedisSettings(f"redis://127.0.0.1:{proxy.port}", redis_server.settings.password)
        one, two = start("one", through), start("two", redis_server.settings)

        def tell(number: int) -> None:
            expected.append([number, number + 1, number + 2])
            one.exchange.publish(A, tokens(*expected[-1]))

        for number in range(20):
            tell(number)
            if number % 5 == 0:
                proxy.cut()
            elif number % 5 == 2:
                proxy.reset()
            time.sleep(0.02)
        proxy.delay_s = 0.3
        tell(50)
        until(lambda: two.has(*expected))
        proxy.delay_s = 0.0
        proxy.black_hole = True
        tell(60)
        until(lambda: not one.exchange.stats().connected)
        until(lambda: one.has(*expected))  # its own index needs no Redis
        proxy.black_hole = False
        proxy.cut()
        until(lambda: two.has(*expected))
        one.exchange.close()
    assert two.exchange.stats().missing == 0


def test_a_full_redis_costs_telling_only(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """Texts wait until there is room again."""
    one, two = start("one", redis_server.settings), start("two", redis_server.settings)
    until(lambda: one.exchange.stats().connected and two.exchange.stats().connected)
    with redis_server.client() as client:
        client.config_set("maxmemory", "1mb")
        one.exchange.publish(A, tokens(1, 2, 3))
        until(lambda: one.exchange.stats().failures > 0)
        assert one.has([1, 2, 3])
        client.config_set("maxmemory", "0")
    until(lambda: two.has([1, 2, 3]))


def test_the_outbox_is_bounded(start: Callable[..., Worker]) -> None:
    """Without Redis for long, the oldest texts are told to nobody, and that is counted."""
    one = start("one", RedisSettings("redis://127.0.0.1:1"))
    long = np.arange(ENTRY_TOKENS, dtype=np.int32)
    rounds = 2 * OUTBOX_TOKENS // ENTRY_TOKENS
    for _ in range(rounds):
        one.exchange.publish(A, long)
    until(lambda: not one.exchange._new)
    until(lambda: 0 < one.exchange._outbox.tokens <= OUTBOX_TOKENS)
    assert one.exchange.stats().dropped >= rounds - OUTBOX_TOKENS // ENTRY_TOKENS


def test_old_texts_are_not_taken_in(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """What was finished before `ttl_s` is as good as gone; a clock that is ahead gains nothing."""
    two = start("two", redis_server.settings)
    now_s = time.time()
    texts = [
        Text(now_s - 2_000, pack(tokens(1, 2, 3))),
        Text(now_s, pack(tokens(4, 5, 6))),
        Text(now_s + 2_000, pack(tokens(7, 8, 9))),
    ]
    with redis_server.client() as client:
        client.xadd(KEYS.stream, {TEXTS: encode(batch("elsewhere", 1, texts=texts))})
    until(lambda: two.has([4, 5, 6], [7, 8, 9]))
    assert two.store.texts[-1][2] <= time.time()


def test_a_forgotten_domain_is_gone_everywhere_and_stays_gone(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """From indices, stream and outboxes; a late copy is left out, a new worker never sees it, and
    other domains as well as later texts stay.
    """
    one, two = start("one", redis_server.settings), start("two", redis_server.settings)
    for worker, first in ((one, 1), (two, 11)):
        worker.exchange.publish(A, tokens(first, 2, 3))
        worker.exchange.publish(B, tokens(first, 5, 6))
    until(lambda: len(one.store.texts) == len(two.store.texts) == 4)
    late = encode(batch("elsewhere", 1, [9, 9, 9]))
    with redis_server.client() as client:
        assert forget_domain(client, KEYS, A, time.time(), 1_000.0) == 2
        until(lambda: one.has() and two.has())
        client.xadd(KEYS.stream, {TEXTS: late})
        one.exchange.publish(A, tokens(7, 8, 9))
        new = start("new", redis_server.settings)
        until(lambda: all(worker.has([7, 8, 9]) for worker in (one, two, new)))
        for worker in (one, two, new):
            assert len(worker.store.of(B)) == 2
        left = [decode(fields, KEYS.fingerprint) for _, fields in client.xrange(KEYS.stream)]
    assert one.exchange.stats().forgotten == 2
    assert sum(isinstance(r, TextBatch) and r.origin == "one" and r.domain == A for r in left) == 1


def test_who_was_cut_off_while_a_domain_was_forgotten_learns_it_later(
    redis_server: RedisServer, start: Callable[..., Worker]
) -> None:
    """Its own index and what it had not told yet, too, even when the record is trimmed."""
    with FaultProxy(redis_server.port) as proxy:
        through = RedisSettings(f"redis://127.0.0.1:{proxy.port}", redis_server.settings.password)
        one, two = start("one", through), start("two", redis_server.settings)
        one.exchange.publish(A, tokens(1, 2, 3))
        until(lambda: two.has([1, 2, 3]))
        proxy.black_hole = True
        until(lambda: not one.exchange.stats().connected)
        one.exchange.publish(A, tokens(4, 5, 6))
        until(lambda: one.has([1, 2, 3], [4, 5, 6]))
        with redis_server.client() as client:
            forget_domain(client, KEYS, A, time.time(), 1_000.0)
            until(lambda: two.has())
            client.delete(KEYS.stream)
        proxy.black_hole = False
        proxy.cut()
        one.exchange.publish(B, tokens(7, 8, 9))
        until(lambda: two.has([7, 8, 9], domain=B))
        until(lambda: one.has())
        assert two.has()
        one.exchange.close()


def test_a_record_says_what_is_wrong_with_it() -> None:
    """For whoever reads the log."""
    with pytest.raises(InvalidRecord, match="another format or tokenizer"):
        decode({TEXTS: encode(batch("x", 1, [1, 2, 3], fingerprint="g"))}, KEYS.fingerprint)
    with pytest.raises(InvalidRecord, match="bytes"):
        decode({TEXTS: bytes(1 << 20)}, KEYS.fingerprint)
