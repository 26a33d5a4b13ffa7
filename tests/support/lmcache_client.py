"""What an engine is to LMCache, without an engine: paged tensors that are stored and fetched.

A thousand times smaller than vLLM, and it sees every byte that comes back.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
import zmq
from lmcache.integration.vllm.vllm_multi_process_adapter import (
    LMCacheMPSchedulerAdapter,
    LMCacheMPWorkerAdapter,
    LoadStoreOp,
    ParallelStrategy,
)
from lmcache_server import LmcacheServer

BLOCK, CHUNK, BLOCKS, LAYERS = 32, 64, 64, 2
PATIENCE_S = 60.0


class LmcacheClient:
    """Stores blocks of random numbers under token ids, and fetches them into others.

    Args:
        server: Of this node.
    """

    def __init__(self, server: LmcacheServer) -> None:
        extra = server.engine_args["kv_transfer_config"]["kv_connector_extra_config"]
        url = f"{extra['lmcache.mp.host']}:{extra['lmcache.mp.port']}"
        alone = ParallelStrategy(
            mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1
        )
        known: dict[str, Any] = {
            "context": zmq.Context.instance(),
            "model_name": "m",
            "vllm_block_size": BLOCK,
            "parallel_strategy": alone,
            "extra_config": extra,
        }
        self._scheduler = LMCacheMPSchedulerAdapter(server_urls=[url], **known)
        self._worker = LMCacheMPWorkerAdapter(server_url=url, **known)
        self.blocks = {f"layer.{i}": torch.rand(2, BLOCKS, 4, BLOCK, 16) for i in range(LAYERS)}
        self._worker.register_kv_caches(self.blocks, layout_hints={"kv_layout": "HND"})

    def store(self, tokens: list[int], salt: str) -> torch.Tensor:
        """Stores the first blocks as those of the tokens; what they hold, [layers, ...]."""
        request_id, count = uuid.uuid4().hex, len(tokens) // CHUNK * CHUNK // BLOCK
        for layer in self.blocks.values():
            layer[:, :count] = torch.rand(2, count, 4, BLOCK, 16)
        op = LoadStoreOp(tokens, [list(range(count))], 0, count * BLOCK)
        self._worker.submit_store_request(request_id, op, None, cache_salt=salt)
        self._until(lambda: request_id not in self._worker.store_futures)
        return self._held(0, count)

    def found(self, tokens: list[int], salt: str) -> int:
        """Tokens that LMCache finds; they lie in its memory then."""
        return self._look_up(uuid.uuid4().hex, tokens, salt)

    def fetch(self, tokens: list[int], salt: str) -> torch.Tensor:
        """Looks up, and fetches what is found into the last blocks; what they hold then."""
        request_id = uuid.uuid4().hex
        count = self._look_up(request_id, tokens, salt, keep=True) // BLOCK
        first = BLOCKS - count
        if count:
            op = LoadStoreOp(tokens, [list(range(first, BLOCKS))], 0, count * BLOCK)
            self._worker.submit_retrieve_request(request_id, op, None, cache_salt=salt)
            self._until(lambda: request_id not in self._worker.retrieve_futures)
            assert not self._worker.get_block_ids_with_load_errors()
        self._scheduler.end_session(request_id)
        return self._held(first, BLOCKS)

    def close(self) -> None:
        self._worker.shutdown()
        self._scheduler.shutdown()

    def _look_up(self, request_id: str, tokens: list[int], salt: str, keep: bool = False) -> int:
        self._scheduler.maybe_submit_lookup_request(request_id, tokens, cache_salt=salt)
        until_s = time.monotonic() + PATIENCE_S
        while (found := self._scheduler.check_lookup_result(request_id)) is None:
            assert time.monotonic() < until_s, "a look-up never ends"
            time.sleep(0.002)
        if not keep:
            if found:
                self._scheduler.free_lookup_locks(tokens, 0, found, request_id, cache_salt=salt)
            self._scheduler.cleanup_lookup_result(request_id)
            self._scheduler.end_session(request_id)
        return found

    def _until(self, done: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self._worker.get_finished(set())
            if done():
                return
            assert time.monotonic() < until_s, "a transfer never ends"
            time.sleep(0.002)

    def _held(self, first: int, last: int) -> torch.Tensor:
        return torch.stack([layer[:, first:last] for layer in self.blocks.values()]).clone()
