"""Where sealed KV blocks lie outside memory: in Redis for the cluster, or on a node's disk.

A store is a page of verbs over names and values. It knows nothing of what they hold; whoever
reads from it checks (`kvstore/sealed_blocks.py`). Everything it can't do is a `StoreUnavailable`,
and what it has lost is not there.
"""

import contextlib
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvstore.errors import FolderUnavailable
from kvstore.redis_client import RedisSettings, store_errors

logger = logging.getLogger(__name__)

REDIS_SHARE: Final = 0.75
"""Of the server's memory that blocks may fill: others keep things there, too."""
ROOM_PERIOD_S: Final = 1.0
ALLOCATED: Final = 1.3
"""Memory that Redis takes for a large value, in its sizes: its allocator rounds up by a quarter."""
CONNECT_TIMEOUT_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 1.0
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PART: Final = ".part"
"""End of the name of a file that is not whole yet."""


class BlockStore(Protocol):
    """A place for values."""

    def lengths(self, names: Sequence[bytes]) -> list[int]:
        """Bytes of each value, 0 where there is none; `StoreUnavailable` if it can't be asked."""

    def get(self, name: bytes) -> bytes | None:
        """One value, whole, or None; `StoreUnavailable` if it can't be asked."""

    def put(self, name: bytes, value: bytes | bytearray) -> bool:
        """Keeps one value, whole or not at all; False where there is no room for it.

        Raises:
            StoreUnavailable: it can't be told.
        """

    def delete(self, names: Sequence[bytes]) -> None:
        """Forgets these; `StoreUnavailable` if it can't be told."""

    def close(self) -> None:
        """Lets go of what is open."""


class RedisStore:
    """Values in Redis, one key each, which leave by themselves after a time.

    Args:
        settings: Where Redis is.
        prefix: Before each name.
        ttl_s: How long a value stays.
    """

    def __init__(self, settings: RedisSettings, prefix: str, ttl_s: int) -> None:
        self._settings = settings
        self._prefix = prefix.encode()
        self._ttl_s = ttl_s
        self._client = redis.Redis.from_url(
            settings.url,
            password=settings.password,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_keepalive=True,
            health_check_interval=15,
            # Who waits for blocks is better off computing them than waiting twice.
            retry=Retry(NoBackoff(), 0),
        )
        self._room_bytes = 0.0
        self._asked_for_room_at_s = float("-inf")
        self._told_of_eviction = False

    def lengths(self, names: Sequence[bytes]) -> list[int]:
        """As in `BlockStore`."""
        with store_errors(self._settings), self._client.pipeline(transaction=False) as asks:
            for name in names:
                asks.strlen(self._prefix + name)
            return [int(length) for length in asks.execute()]

    def get(self, name: bytes) -> bytes | None:
        """As in `BlockStore`."""
        with store_errors(self._settings):
            value = self._client.get(self._prefix + name)
        return value if isinstance(value, bytes) else None

    def put(self, name: bytes, value: bytes | bytearray) -> bool:
        """As in `BlockStore`."""
        with store_errors(self._settings):
            if not self._has_room(len(value)):
                return False
            try:
                self._client.set(self._prefix + name, memoryview(value), ex=self._ttl_s)
            except redis.OutOfMemoryError:
                self._room_bytes = 0.0
                return False
        return True

    def delete(self, names: Sequence[bytes]) -> None:
        """As in `BlockStore`."""
        with store_errors(self._settings):
            self._client.unlink(*(self._prefix + name for name in names))

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def _has_room(self, size: int) -> bool:
        """By what the server said a second ago, less what was written since."""
        now_s = time.monotonic()
        if now_s - self._asked_for_room_at_s > ROOM_PERIOD_S:
            self._asked_for_room_at_s = now_s
            memory = self._client.info("memory")
            limit, policy = memory["maxmemory"], memory["maxmemory_policy"]
            evicts = policy != "noeviction"
            if limit and evicts and not self._told_of_eviction:
                self._told_of_eviction = True
                logger.warning(
                    "kv tier=redis maxmemory_policy=%s: a full Redis removes what else is in it, "
                    "the cluster's registry included; use noeviction",
                    policy,
                )
            is_bounded = limit and not evicts
            left = REDIS_SHARE * limit - memory["used_memory"]
            self._room_bytes = left if is_bounded else float("inf")
        if self._room_bytes < ALLOCATED * size:
            return False
        self._room_bytes -= ALLOCATED * size
        return True


class DiskStore:
    """Values in a folder, a file each; the ones used longest ago go when it is full.

    Args:
        folder: Made if it isn't there; everything in it is taken for values.
        max_bytes: Most that they take together.

    Raises:
        FolderUnavailable: It can't be made or read.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._bytes = 0
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for half in folder.glob(f"*{PART}"):
                half.unlink(missing_ok=True)
            found = sorted(
                (seen.st_mtime, file.name, seen.st_size)
                for file in folder.iterdir()
                if (seen := file.stat())
            )
        for _, name, size in found:
            self._sizes[name.encode()] = size
            self._bytes += size

    def lengths(self, names: Sequence[bytes]) -> list[int]:
        """As in `BlockStore`."""
        with self._lock:
            return [self._sizes.get(name, 0) for name in names]

    def get(self, name: bytes) -> bytes | None:
        """As in `BlockStore`."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            return (self._folder / name.decode()).read_bytes()
        except FileNotFoundError:
            self._forget(name)
            return None
        except OSError as error:
            raise self._unavailable(error) from error

    def put(self, name: bytes, value: bytes | bytearray) -> bool:
        """As in `BlockStore`."""
        if len(value) > self._max_bytes:
            return False
        self._make_room(len(value))
        file = self._folder / name.decode()
        part = self._folder / f"{name.decode()}.{time.monotonic_ns()}{PART}"
        with self._errors():
            try:
                part.write_bytes(value)
                part.replace(file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
                if error.errno in NO_ROOM:  # Others fill the disk; what is there can be read.
                    return False
                raise
        self._forget(name)
        with self._lock:
            self._sizes[name] = len(value)
            self._bytes += len(value)
        return True

    def delete(self, names: Sequence[bytes]) -> None:
        """As in `BlockStore`."""
        with self._errors():
            for name in names:
                self._forget(name)
                (self._folder / os.fsdecode(name)).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""

    def _make_room(self, needed: int) -> None:
        with self._lock:
            leaving, room = [], self._max_bytes - self._bytes
            for name, size in self._sizes.items():
                if room >= needed:
                    break
                leaving.append(name)
                room += size
        self.delete(leaving)

    def _forget(self, name: bytes) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> FolderUnavailable:
        return FolderUnavailable(str(self._folder), str(error), "is the disk gone or read-only?")
