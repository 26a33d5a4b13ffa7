"""A tier behind LMCache's memory, as LMCache asks for it: tasks that end by a bit in a bitmap.

LMCache loads this class in its server process (an L2 adapter of type `plugin`). What a tier does
is in `kvstore/sealed_tier.py`; here it is done in threads, so that LMCache's own never wait.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from configs import parse_config
from kvstore.sealed_blocks import BlockKey
from kvstore.sealed_tier import GIB, SealedTier

logger = logging.getLogger(__name__)

WORKERS: Final = 4
"""Values on their way at once, in each direction."""
NOT_STORED: Final = L2StoreResult(False, 0)

T = TypeVar("T")


class SealedAdapter(L2AdapterInterface):  # type: ignore[misc]
    """One tier behind LMCache's memory.

    Args:
        params: `config`, a file with the cluster's config in JSON, and `tier`, the place of this
            tier in `kv.tiers`.
        l1_memory_desc: LMCache's; not needed.

    Raises:
        NoClusterToken: There is nothing to seal with.
        StoreUnavailable: The password to Redis, or the folder, can't be had.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: object = None) -> None:
        source = str(params["config"])
        config = parse_config(json.loads(Path(source).read_text()), source=source)
        tier = config.kv.tiers[params["tier"]]
        # LMCache's own eviction frees Redis' share; a folder keeps its size by itself.
        share = tier.size_gib * GIB if tier.kind == "redis" and tier.size_gib else 0
        super().__init__(max_capacity_bytes=int(share))
        self._tier = SealedTier.of_config(config, tier)
        self._lock = threading.Lock()
        self._last_task = 0
        self._stored: dict[int, L2StoreResult] = {}
        self._found: dict[int, Bitmap] = {}
        self._loaded: dict[int, Bitmap] = {}
        self._sizes: dict[ObjectKey, int] = {}
        self._store_event = create_event_notifier()
        self._lookup_event = create_event_notifier()
        self._load_event = create_event_notifier()
        # Look-ups must not stand behind values that are on their way.
        self._asking = ThreadPoolExecutor(WORKERS, "kv-ask")
        self._reading = ThreadPoolExecutor(WORKERS, "kv-read")
        self._writing = ThreadPoolExecutor(WORKERS, "kv-write")

    def get_store_event_fd(self) -> int:
        """Signalled when a task to store has ended."""
        return int(self._store_event.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """Signalled when a look-up has ended."""
        return int(self._lookup_event.fileno())

    def get_load_event_fd(self) -> int:
        """Signalled when a task to load has ended."""
        return int(self._load_event.fileno())

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Begins to store objects."""
        task = self._next_task()

        def store_all() -> None:
            kept = [
                self._tier.put(_key(key), _bytes_of(obj))
                for key, obj in zip(keys, objects, strict=True)
            ]
            self._note_stored(keys, kept)
            self._end(self._stored, task, L2StoreResult(all(kept), sum(kept)), self._store_event)

        self._begin(self._writing, store_all, self._stored, task, NOT_STORED, self._store_event)
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Tasks to store that ended since the last call."""
        with self._lock:
            stored, self._stored = self._stored, {}
        return stored

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        """Begins to look up objects; only values of the right length are found."""
        task, nothing = self._next_task(), Bitmap(len(keys))
        wanted = {group: _nbytes(layout) for group, layout in group_layout_descs.items()}

        def look_up() -> None:
            found = Bitmap(len(keys))
            lengths = self._tier.lengths([_key(key) for key in keys])
            for place, (key, length) in enumerate(zip(keys, lengths, strict=True)):
                if length and wanted.get(key.object_group_id, length) == length:
                    found.set(place)
            self._end(self._found, task, found, self._lookup_event)

        self._begin(self._asking, look_up, self._found, task, nothing, self._lookup_event)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """What a look-up found, once, when it has ended."""
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Nothing is locked: a value that goes before it is loaded is a miss."""

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Begins to load objects into the memory that is given."""
        task, loaded = self._next_task(), Bitmap(len(keys))
        began_s, left = time.monotonic(), len(keys)
        moved = 0

        def load(place: int) -> None:
            nonlocal left, moved
            into, ok = _bytes_of(objects[place]), False
            try:
                ok = self._tier.get(_key(keys[place]), into)
            finally:
                with self._lock:
                    if ok:
                        loaded.set(place)
                        moved += len(into)
                    left -= 1
                    is_last = left == 0
                if is_last:
                    self._tier.account.took(moved, time.monotonic() - began_s)
                    self._end(self._loaded, task, loaded, self._load_event)

        for place in range(len(keys)):
            self._reading.submit(partial(_logged, partial(load, place)))
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """What was loaded, once, when the task has ended."""
        with self._lock:
            return self._loaded.pop(task_id, None)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Forgets objects, for LMCache's eviction."""
        self._tier.delete([_key(key) for key in keys])
        with self._lock:
            gone = {key: self._sizes.pop(key) for key in keys if key in self._sizes}
        if gone:
            self._notify_keys_deleted(list(gone), list(gone.values()))

    def report_status(self) -> dict[str, Any]:
        """For LMCache's `/status`."""
        return self._tier.account.status()

    def close(self) -> None:
        """Ends the work that is under way."""
        for pool in (self._asking, self._reading, self._writing):
            pool.shutdown(wait=True, cancel_futures=True)
        self._tier.close()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()

    def _note_stored(self, keys: list[ObjectKey], kept: list[int]) -> None:
        """Tells LMCache's eviction; a value that was there already takes no more room."""
        with self._lock:
            new = {
                key: size
                for key, size in zip(keys, kept, strict=True)
                if size and key not in self._sizes
            }
            if self.supports_global_eviction:
                self._sizes.update(new)
        if new:
            self._notify_keys_stored(list(new), list(new.values()))

    def _begin(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], None],
        ended: dict[int, T],
        task: int,
        failed: T,
        event: Any,
    ) -> None:
        """Has a thread do it; LMCache would wait for ever for a task that never ends."""

        def guarded() -> None:
            try:
                work()
            except Exception:
                logger.exception("kv task=failed")
                self._end(ended, task, failed, event)

        pool.submit(guarded)

    def _end(self, ended: dict[int, T], task: int, result: T, event: Any) -> None:
        with self._lock:
            ended[task] = result
        event.notify()

    def _next_task(self) -> int:
        with self._lock:
            self._last_task += 1
            return self._last_task


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        logger.exception("kv load=failed")


def _key(key: ObjectKey) -> BlockKey:
    return BlockKey(
        key.chunk_hash, key.model_name, key.kv_rank, key.object_group_id, key.cache_salt
    )


def _bytes_of(obj: MemoryObj) -> memoryview:
    # Its own format, "<B", allows no assignment of slices.
    return memoryview(obj.byte_array).cast("B")


def _nbytes(layout: MemoryLayoutDesc) -> int:
    return sum(
        shape.numel() * dtype.itemsize
        for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
    )
