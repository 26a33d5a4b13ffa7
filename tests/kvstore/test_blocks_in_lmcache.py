"""Blocks go through real LMCache and Redis and come back byte for byte, or do not come back.

Two clients stand for the engines of two verifiers. Between a store and a fetch LMCache's memory is
emptied where it is Redis that is meant.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from fault_proxy import FaultProxy
from lmcache_client import BLOCKS, CHUNK, LmcacheClient
from lmcache_server import LmcacheServer
from redis_server import RedisServer

SALT, OTHER_SALT = "ab" * 32, "cd" * 32
TOKENS = 300
FOUND = TOKENS // CHUNK * CHUNK
PATIENCE_S = 60.0


class House:
    """Redis behind a proxy, LMCache before it."""

    def __init__(self, folder_of: pytest.TempPathFactory) -> None:
        self.redis = RedisServer(folder_of.mktemp("redis"))
        self.redis.start()
        self.proxy = FaultProxy(self.redis.port)
        self.lmcache = LmcacheServer(
            folder_of.mktemp("lmcache"),
            ({"kind": "redis"},),
            self.redis,
            redis_port=self.proxy.port,
        )
        self.lmcache.start()

    def values(self) -> set[bytes]:
        """Names of what lies in Redis."""
        with self.redis.client() as client:
            return set(client.scan_iter("paceline:*:kv:*"))

    def stored(self, client: LmcacheClient, tokens: list[int]) -> tuple[torch.Tensor, list[bytes]]:
        """Stores blocks; what they hold, and their names in Redis once they are there."""
        before = self.values()
        held = client.store(tokens, SALT)
        wait_for(lambda: len(self.values() - before) == FOUND // CHUNK)
        return held, sorted(self.values() - before)

    def counts(self) -> dict[str, int]:
        return dict(self.lmcache.tier("redis").counts)

    def close(self) -> None:
        self.lmcache.kill()
        self.proxy.close()
        self.redis.kill()


def wait_for(what: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def some_tokens() -> list[int]:
    return [random.randrange(500) for _ in range(TOKENS)]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def one(house: House) -> Iterator[LmcacheClient]:
    client = LmcacheClient(house.lmcache)
    yield client
    client.close()


@pytest.fixture
def other(house: House) -> Iterator[LmcacheClient]:
    client = LmcacheClient(house.lmcache)
    yield client
    client.close()


def test_another_engine_finds_what_one_that_is_gone_has_stored(
    house: House, other: LmcacheClient
) -> None:
    """In LMCache's memory, and in Redis when that is empty."""
    tokens, first = some_tokens(), LmcacheClient(house.lmcache)
    held, _ = house.stored(first, tokens)
    first.close()
    assert torch.equal(other.fetch(tokens, SALT), held)
    house.lmcache.empty_memory()
    before = house.counts().get("loaded", 0)
    assert torch.equal(other.fetch(tokens, SALT), held)
    assert house.counts()["loaded"] == before + FOUND // CHUNK


def test_what_came_from_redis_stays_in_memory(house: House, one: LmcacheClient) -> None:
    """The next one need not wait for Redis."""
    tokens = some_tokens()
    house.stored(one, tokens)
    house.lmcache.empty_memory()
    assert one.found(tokens, SALT) == FOUND
    before = house.counts()["loaded"]
    assert one.found(tokens, SALT) == FOUND
    assert house.counts()["loaded"] == before


def test_the_same_tokens_under_another_salt_are_not_there(house: House, one: LmcacheClient) -> None:
    """Nor any of a prefix that differs in its first token; nothing in Redis names a tenant."""
    tokens = some_tokens()
    house.stored(one, tokens)
    assert one.found(tokens, OTHER_SALT) == 0
    assert one.found([tokens[0] ^ 1, *tokens[1:]], SALT) == 0
    assert one.found(tokens, SALT) == FOUND
    assert not any(SALT[:8].encode() in name for name in house.values())


def flip(values: Sequence[bytes], house: House) -> None:
    """One bit of each, in the middle."""
    with house.redis.client() as client:
        for name in values:
            middle = client.strlen(name) // 2
            byte = client.getrange(name, middle, middle)
            client.setrange(name, middle, bytes([byte[0] ^ 1]))


def cut(values: Sequence[bytes], house: House) -> None:
    """The end of each is missing."""
    with house.redis.client() as client:
        for name in values:
            client.set(name, client.getrange(name, 0, client.strlen(name) // 2))


def shuffle(values: Sequence[bytes], house: House) -> None:
    """Each has another's content, of the right size and by the right cluster."""
    with house.redis.client() as client:
        contents = [client.get(name) for name in values]
        for name, content in zip(values, contents[1:] + contents[:1], strict=True):
            client.set(name, content)


def pickles(values: Sequence[bytes], house: House) -> None:
    """Bytes of the right size that run a program where somebody unpickles them."""
    with house.redis.client() as client:
        for name in values:
            harm = b"cos\nsystem\n(S'touch /tmp/unpickled-by-paceline'\ntR."
            client.set(name, harm.ljust(client.strlen(name), b"."))


@pytest.mark.parametrize("spoil", [flip, cut, shuffle, pickles])
def test_a_spoiled_value_is_not_there(
    house: House, one: LmcacheClient, spoil: Callable[[Sequence[bytes], House], None]
) -> None:
    """Not a block of it reaches an engine, it is counted, and room is made for a good one."""
    tokens = some_tokens()
    held, names = house.stored(one, tokens)
    spoil(names, house)
    before = house.counts().get("refused", 0)

    def is_refused() -> bool:
        """Asked again where a busy Redis was left alone for a moment."""
        house.lmcache.empty_memory()
        assert one.fetch(tokens, SALT).shape[2] == 0
        # One that was cut is seen by its length already.
        return spoil is cut or house.counts().get("refused", 0) > before

    wait_for(is_refused)
    again = one.store(tokens, SALT)
    wait_for(lambda: set(names) <= house.values())
    assert torch.equal(one.fetch(tokens, SALT), again)
    assert not torch.equal(again, held)


def test_one_evicted_value_costs_what_follows_it_only(house: House, one: LmcacheClient) -> None:
    """The prefix before it is still found, and is right."""
    tokens = some_tokens()
    held, names = house.stored(one, tokens)
    with house.redis.client() as client:
        client.delete(names[0])
    house.lmcache.empty_memory()
    found = one.fetch(tokens, SALT)
    blocks = found.shape[2]
    assert blocks < FOUND // 32
    assert torch.equal(found, held[:, :, :blocks])
    assert blocks + 1 < BLOCKS


def test_a_silent_redis_is_a_miss_and_is_used_again_when_it_is_back(
    house: House, one: LmcacheClient
) -> None:
    """Stores and look-ups end, the tier is left alone, and comes back by itself."""
    tokens, later = some_tokens(), some_tokens()
    held, _ = house.stored(one, tokens)
    house.lmcache.empty_memory()
    house.proxy.black_hole = True
    assert one.found(tokens, SALT) == 0
    one.store(later, SALT)
    wait_for(lambda: house.counts().get("failed", 0) > 0)
    assert not house.lmcache.tier("redis").is_healthy
    house.proxy.cut()
    house.proxy.black_hole = False
    wait_for(lambda: one.found(tokens, SALT) == FOUND)
    assert torch.equal(one.fetch(tokens, SALT), held)
    assert house.lmcache.log.count("state=left_alone") == 1
    assert house.lmcache.log.count("state=back") == 1


def test_a_restarted_lmcache_has_what_redis_has(house: House, one: LmcacheClient) -> None:
    """An engine finds it again by itself."""
    tokens = some_tokens()
    held, _ = house.stored(one, tokens)
    house.lmcache.kill()
    house.lmcache.start()
    wait_for(lambda: one.found(tokens, SALT) == FOUND)
    wait_for(lambda: bool(one._worker.is_healthy))
    assert torch.equal(one.fetch(tokens, SALT), held)
