"""One tier of shared KV blocks: sealed values in a store that may fail, and is left alone then.

What can't be had, or isn't what was sealed, is a miss; nothing is raised. Threads may share it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from configs.schema import ClusterConfig
from configs.sections.kv import KvTier
from kvstore.block_stores import BlockStore, DiskStore, RedisStore
from kvstore.cluster_token import cluster_token
from kvstore.errors import StoreUnavailable
from kvstore.redis_client import redis_settings
from kvstore.sealed_blocks import SEAL_BYTES, BlockKey, Seal
from kvstore.tier_account import TierAccount

GIB: Final = 1 << 30
PROBE: Final = b"probe"
"""Name of what is written to see whether a store works; no blocks have it."""

T = TypeVar("T")


class SealedTier:
    """A store behind seals and an account.

    Args:
        store: Where values are kept.
        seal: Of the cluster.
        account: What is done is told to it, and it says when the store is left alone.
    """

    def __init__(self, store: BlockStore, seal: Seal, account: TierAccount) -> None:
        self.account = account
        self._store = store
        self._seal = seal

    @classmethod
    def of_config(cls, config: ClusterConfig, tier: KvTier) -> "SealedTier":
        """The tier that a config describes; secrets are read from where it says they are.

        Raises:
            NoClusterToken: There is nothing to seal with.
            StoreUnavailable: The password to Redis, or the folder, can't be had.
        """
        seal = Seal(cluster_token(config))
        return cls(_store_of(config, tier), seal, TierAccount(tier.kind))

    def put(self, key: BlockKey, blocks: memoryview) -> int:
        """Keeps blocks; returns the bytes that were kept, 0 where there is no room or no store."""
        name = self._seal.name(key)
        value = self._seal.sealed(name, blocks)
        kept = self._ask(lambda: self._store.put(name, value))
        if kept:
            self.account.stored(len(value))
            return len(value)
        if kept is False:
            self.account.dropped(time.monotonic())
        return 0

    def get(self, key: BlockKey, into: memoryview) -> bool:
        """Brings blocks into memory that is exactly as long; False where they are not there."""
        name = self._seal.name(key)
        value = self._ask(lambda: self._store.get(name))
        if value is None:
            self.account.missed()
            return False
        blocks = self._seal.opened(name, value, len(into))
        if blocks is None:
            self.account.refused()
            self._ask(lambda: self._store.delete([name]))
            return False
        into[:] = blocks
        self.account.loaded(len(value))
        return True

    def lengths(self, keys: Sequence[BlockKey]) -> list[int]:
        """Bytes of the blocks under each key, as far as can be seen without reading; 0: none."""
        names = [self._seal.name(key) for key in keys]
        began_s = time.monotonic()
        lengths = self._ask(lambda: self._store.lengths(names))
        if lengths is None:
            return [0] * len(keys)
        self.account.looked_up(time.monotonic() - began_s)
        return [max(0, length - SEAL_BYTES) for length in lengths]

    def delete(self, keys: Sequence[BlockKey]) -> None:
        """Forgets blocks."""
        names = [self._seal.name(key) for key in keys]
        self._ask(lambda: self._store.delete(names))

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()

    def _ask(self, what: Callable[[], T]) -> T | None:
        """What the store answers; None while it is left alone, or where it fails."""
        if self.account.is_left_alone:
            if self.account.is_due(time.monotonic()):
                threading.Thread(target=self._look_again, name="kv-look", daemon=True).start()
            return None
        try:
            answer = what()
        except StoreUnavailable as error:
            self.account.failed(str(error), time.monotonic())
            return None
        self.account.answered()
        return answer

    def _look_again(self) -> None:
        """Whether the store is back; nobody waits for it."""
        try:
            self._store.put(PROBE, b"?")
            self._store.delete([PROBE])
        except StoreUnavailable as error:
            self.account.failed(str(error), time.monotonic())
        else:
            self.account.answered()


def _store_of(config: ClusterConfig, tier: KvTier) -> BlockStore:
    if tier.kind == "redis":
        return RedisStore(redis_settings(config), f"paceline:{config.name}:kv:", config.kv.ttl_s)
    assert tier.path is not None and tier.size_gib is not None  # configs/checks/kv.py
    return DiskStore(tier.path.expanduser(), int(tier.size_gib * GIB))
