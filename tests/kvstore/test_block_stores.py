"""One set of tests for every place where sealed KV blocks are kept."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer

from kvstore.block_stores import REDIS_SHARE, BlockStore, DiskStore, RedisStore
from kvstore.errors import FolderUnavailable, StoreUnavailable
from kvstore.redis_client import RedisSettings

MIB = 1 << 20


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockStore]:
    """Each kind, empty."""
    kept: BlockStore
    if request.param == "disk":
        kept = DiskStore(tmp_path / "kv", 10 * MIB)
    else:
        redis: RedisServer = request.getfixturevalue("redis_server")
        kept = RedisStore(redis.settings, "test:", ttl_s=60)
    yield kept
    kept.close()


def test_what_is_put_can_be_had(store: BlockStore) -> None:
    """Whole, with its length, until it is deleted or replaced."""
    value = os.urandom(MIB)
    assert store.put(b"a", value)
    assert store.put(b"b", bytearray(b"second"))
    assert store.lengths([b"b", b"nothing", b"a"]) == [6, 0, MIB]
    assert store.get(b"a") == value
    assert store.put(b"b", b"new")
    assert store.get(b"b") == b"new"
    store.delete([b"a", b"nothing"])
    assert store.get(b"a") is None
    assert store.lengths([b"a"]) == [0]


def test_a_full_folder_gives_up_what_was_used_longest_ago(tmp_path: Path) -> None:
    """And keeps what was just read."""
    store = DiskStore(tmp_path, 3 * MIB)
    for name in (b"a", b"b", b"c"):
        assert store.put(name, bytes(MIB))
    assert store.get(b"a") is not None
    assert store.put(b"d", bytes(MIB))
    assert store.lengths([b"a", b"b", b"c", b"d"]) == [MIB, 0, MIB, MIB]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3 * MIB
    assert not store.put(b"huge", bytes(4 * MIB))


def test_a_folder_remembers_after_a_restart(tmp_path: Path) -> None:
    """Its values, and what they take; half-written ones count for nothing."""
    DiskStore(tmp_path, MIB).put(b"a", b"kept")
    (tmp_path / "b.1.part").write_bytes(b"half")
    store = DiskStore(tmp_path, MIB)
    assert store.get(b"a") == b"kept"
    assert store.lengths([b"b", b"b.1.part"]) == [0, 0]
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_somebody_removed_is_not_there(tmp_path: Path) -> None:
    """A miss, not an error."""
    store = DiskStore(tmp_path, MIB)
    store.put(b"a", b"value")
    (tmp_path / "a").unlink()
    assert store.get(b"a") is None
    assert store.lengths([b"a"]) == [0]


def test_a_disk_that_can_not_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was mounted anew for reading, for example; nothing half stays behind."""
    store = DiskStore(tmp_path, MIB)

    def refused(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refused)
    with pytest.raises(FolderUnavailable, match="Read-only"):
        store.put(b"a", b"value")
    assert list(tmp_path.iterdir()) == []
    assert store.lengths([b"a"]) == [0]


def test_redis_keeps_room_for_others(redis_server: RedisServer) -> None:
    """Blocks that would take more than their share find no room, and nothing else fails."""
    with redis_server.client() as client:
        client.config_set("maxmemory", 40 * MIB)
        store = RedisStore(redis_server.settings, "test:", ttl_s=60)
        kept = sum(store.put(b"%d" % i, os.urandom(2 * MIB)) for i in range(40))
        assert 5 <= kept < 20
        assert client.info("memory")["used_memory"] < 40 * MIB * REDIS_SHARE + 4 * MIB
        assert client.set("registry", "still has room")
    store.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_what_redis_evicts_is_not_there(
    redis_server: RedisServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A value goes whole: found means there. One line tells what else such a Redis may lose."""
    with redis_server.client() as client:
        client.config_set("maxmemory", 20 * MIB)
        client.config_set("maxmemory-policy", policy)
    store = RedisStore(redis_server.settings, "test:", ttl_s=60)
    names = [b"%d" % i for i in range(30)]
    for name in names:
        store.put(name, os.urandom(2 * MIB))
    lengths = store.lengths(names)
    assert 0 < lengths.count(2 * MIB) < len(names)
    assert set(lengths) == {0, 2 * MIB}
    for name, length in zip(names, lengths, strict=True):
        value = store.get(name)
        assert (len(value) if value is not None else 0) == length
    assert caplog.text.count(f"maxmemory_policy={policy}") == 1
    store.close()


def test_values_leave_redis_by_themselves(redis_server: RedisServer) -> None:
    """Each has a time to live."""
    store = RedisStore(redis_server.settings, "test:", ttl_s=1234)
    store.put(b"a", b"value")
    with redis_server.client() as client:
        assert 1200 < client.ttl("test:a") <= 1234
    store.close()


def _gone(server: RedisServer) -> RedisSettings:
    server.kill()
    return server.settings


def _wrong_password(server: RedisServer) -> RedisSettings:
    return RedisSettings(server.settings.url, "wrong")


def _tls_where_there_is_none(server: RedisServer) -> RedisSettings:
    return RedisSettings(server.settings.url.replace("redis://", "rediss://"), "x")


@pytest.mark.parametrize("how", [_gone, _wrong_password, _tls_where_there_is_none])
def test_a_redis_that_does_not_serve_us_says_so(
    redis_server: RedisServer, how: Callable[[RedisServer], RedisSettings]
) -> None:
    """Dead, of another password, or without the TLS that is asked for: one kind of error."""
    store = RedisStore(how(redis_server), "test:", ttl_s=60)
    for ask in (
        lambda: store.lengths([b"a"]),
        lambda: store.get(b"a"),
        lambda: store.put(b"a", b"value"),
    ):
        with pytest.raises(StoreUnavailable):
            ask()
    store.close()
