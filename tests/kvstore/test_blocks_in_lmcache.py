"""Blocks go through real LMCache and Redis and come back byte for byte, or do not come back.

Two clients stand for the engines of two verifiers. Between a store and a fetch LMCache's memory is
emptied where it is Redis that is meant.
"""

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from fault_proxy import FaultProxy
from lmcache_client import BLOCK, BLOCKS, CHUNK, LAYERS, LmcacheClient
from lmcache_server import LmcacheServer
from missing import missing
from redis_server import RedisServer

from kvstore.sealed_blocks import SEAL_BYTES

SALT, OTHER_SALT = "ab" * 32, "cd" * 32
TOKENS = 300
FOUND = TOKENS // CHUNK * CHUNK
VALUE_BYTES = LAYERS * 2 * 4 * CHUNK * 16 * 4
"""Of one chunk: layers, keys and values, heads, tokens, their size, float32."""
PATIENCE_S = 60.0
SETTLED_S = 0.5
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
"""Command that gives the next one mounts of its own."""


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

    def revive(self) -> None:
        """Starts Redis again, empty, and waits until the tier is used."""
        self.proxy.passes = None
        self.redis.start()
        client = LmcacheClient(self.lmcache)

        def stores() -> bool:
            client.store(some_tokens(), SALT)
            return bool(self.values())

        wait_for(stores)
        client.close()
        seen: set[bytes] = set()
        while seen != (now := self.values()):  # what was stored may still be on its way
            seen = now
            time.sleep(SETTLED_S)

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
    assert blocks < FOUND // BLOCK
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


def test_a_redis_far_away_gives_the_same_blocks_later(house: House, one: LmcacheClient) -> None:
    """Each message takes 300 ms: the tier is used on, and what it gives is right."""
    tokens = some_tokens()
    held, _ = house.stored(one, tokens)
    house.lmcache.empty_memory()
    house.proxy.delay_s = 0.3
    try:
        assert one.found(tokens, SALT) == FOUND
        assert torch.equal(one.fetch(tokens, SALT), held)
        assert house.lmcache.tier("redis").is_healthy
    finally:
        house.proxy.delay_s = 0.0


def test_a_redis_that_refuses_connections_is_a_miss_at_once(
    house: House, one: LmcacheClient
) -> None:
    """Nothing is listening there any more; what is stored meanwhile is in memory."""
    tokens = some_tokens()
    house.stored(one, tokens)
    house.lmcache.empty_memory()
    house.redis.kill()
    started_s = time.monotonic()
    assert one.found(tokens, SALT) == 0
    assert time.monotonic() - started_s < 5
    later = some_tokens()
    held = one.store(later, SALT)
    assert torch.equal(one.fetch(later, SALT), held)
    house.revive()


def test_a_redis_that_dies_in_the_middle_of_a_load_is_a_miss(
    house: House, one: LmcacheClient
) -> None:
    """What came whole is right, what came in part is not there, and later ones are stored."""
    tokens = some_tokens()
    held, _ = house.stored(one, tokens)
    house.lmcache.empty_memory()
    failed = house.counts().get("failed", 0)
    house.proxy.passes = VALUE_BYTES * 3 // 2
    found = one.fetch(tokens, SALT)
    assert house.proxy.passes == 0
    house.redis.kill()
    blocks = found.shape[2]
    assert blocks < FOUND // BLOCK
    assert torch.equal(found, held[:, :, :blocks])
    assert house.counts()["failed"] > failed
    house.revive()


def test_a_redis_that_dies_in_the_middle_of_a_store_holds_nothing_half(
    house: House, one: LmcacheClient
) -> None:
    """The engine's blocks are in memory all the same, and later ones are stored."""
    tokens, before = some_tokens(), house.values()
    failed = house.counts().get("failed", 0)
    house.proxy.passes = VALUE_BYTES * 3 // 2
    held = one.store(tokens, SALT)
    wait_for(lambda: house.counts().get("failed", 0) > failed)
    assert house.proxy.passes == 0
    with house.redis.client() as client:
        sizes = {client.strlen(name) for name in house.values() - before}
    assert sizes == {VALUE_BYTES + SEAL_BYTES}
    house.redis.kill()
    assert torch.equal(one.fetch(tokens, SALT), held)
    house.revive()


def test_a_restarted_lmcache_has_what_redis_has(house: House, one: LmcacheClient) -> None:
    """An engine finds it again by itself."""
    tokens = some_tokens()
    held, _ = house.stored(one, tokens)
    house.lmcache.kill()
    house.lmcache.start()
    wait_for(lambda: one.found(tokens, SALT) == FOUND)
    wait_for(lambda: bool(one._worker.is_healthy))
    assert torch.equal(one.fetch(tokens, SALT), held)


def test_tiers_that_can_not_be_used_cost_nothing_but_themselves(
    house: House, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A disk that is full and a Redis that refuses the password: blocks go through memory, what
    the disk took before is found, and one line tells of each.
    """
    if subprocess.run([*OWN_MOUNTS, "true"], check=False, capture_output=True).returncode:
        missing("unshare may not make a namespace of mounts here")
    folder = tmp_path_factory.mktemp("full")
    mount = f'mount -t tmpfs -o size={VALUE_BYTES * 5 // 2} none {folder} && exec "$@"'
    server = LmcacheServer(
        tmp_path_factory.mktemp("lmcache"),
        ({"kind": "disk", "size_gib": 1, "path": str(folder)}, {"kind": "redis"}),
        house.redis,
        password="another",
        prefix=(*OWN_MOUNTS, "sh", "-c", mount, "sh"),
    )
    server.start()
    client, tokens = LmcacheClient(server), some_tokens()
    try:
        held = client.store(tokens, SALT)
        assert torch.equal(client.fetch(tokens, SALT), held)
        wait_for(lambda: server.tier("disk").counts.get("dropped", 0) > 0)
        wait_for(lambda: server.tier("redis").counts.get("failed", 0) > 0)
        for _ in range(3):
            client.store(some_tokens(), SALT)
        server.empty_memory()
        found = client.fetch(tokens, SALT)
        assert torch.equal(found, held[:, :, : 2 * CHUNK // BLOCK])
        assert server.tier("disk").counts["stored"] == 2
        assert "stored" not in server.tier("redis").counts
        assert server.log.count("tier=disk state=full") == 1
        assert server.log.count("tier=disk") == 1
        assert server.log.count("tier=redis state=left_alone") == 1
        assert "another" not in server.log
    finally:
        client.close()
        server.kill()
