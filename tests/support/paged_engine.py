"""vLLM's own scheduler and our KV connector, with a sum in place of a model.

What a block of a sequence must hold follows from the tokens up to its end, so every block that
was computed, stored, fetched or stored too early can be told. It takes no model and no engine.
"""

import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from replicas.verifier.kv_connector import SharedKvConnector

BLOCK, BLOCKS, LAYERS, HEADS, SIZE = 32, 48, 2, 4, 32
STEP_TOKENS = 96
PATIENCE_S = 60.0


class PagedEngine:
    """One request at a time, and what its blocks held at its end.

    Args:
        model: A folder with a config; no weights are read.
        engine_args: vLLM's, of a node with LMCache.
    """

    def __init__(self, model: Path, engine_args: dict[str, Any]) -> None:
        config: VllmConfig = EngineArgs(
            model=str(model),
            dtype="float32",
            block_size=BLOCK,
            max_model_len=1024,
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=4,
            enforce_eager=True,
            **engine_args,
        ).create_engine_config()
        names = [f"layer.{i}" for i in range(LAYERS)]
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float32
        )
        page = spec.page_size_bytes
        cache = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[
                KVCacheTensor(page * BLOCKS * LAYERS, names, page * BLOCKS, page),
            ],
            kv_cache_groups=[KVCacheGroupSpec(names, spec)],
        )
        config.cache_config.num_gpu_blocks = BLOCKS
        config.cache_config.kv_cache_layout = "LBHNC"
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler = Scheduler(
            config, cache, StructuredOutputManager(config), BLOCK, log_stats=True
        )
        self.worker = SharedKvConnector(config, KVConnectorRole.WORKER, cache)
        self.blocks = {name: torch.zeros(2, BLOCKS, HEADS, BLOCK, SIZE) for name in names}
        self.worker.register_kv_caches(self.blocks)
        self.told: dict[str, Any] = {}
        self._tables: dict[str, list[int]] = {}
        self._number = 0

    def run(self, tokens: list[int], salt: str = "ab" * 32) -> int:
        """Answers one request with one token; how many tokens of it were found.

        Raises:
            AssertionError: A block of it held something else than its tokens ask for.
        """
        self._number += 1
        request = Request(
            str(self._number),
            tokens,
            SamplingParams(max_tokens=1, temperature=0),
            None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )
        request.sampling_params.update_from_generation_config({}, None)
        self.scheduler.add_request(request)
        until_s, computed = time.monotonic() + PATIENCE_S, 0
        while not request.is_finished():
            assert time.monotonic() < until_s, "the request never ends"
            computed += self._step(tokens)
        self._check(request.request_id, tokens)
        while self.scheduler.has_finished_requests() or self.worker.worker_adapter.store_futures:
            self._step(tokens)
        return len(tokens) - computed

    def forget(self) -> None:
        """Empties its own prefix cache, and what its blocks hold."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.scheduler.reset_prefix_cache():
            assert time.monotonic() < until_s, "blocks are held for ever"
            self._step([])
        for layer in self.blocks.values():
            layer.zero_()

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.connector.shutdown()

    def _step(self, tokens: list[int]) -> int:
        """One engine step; how many tokens were computed in it."""
        planned = self.scheduler.schedule()
        self.worker.bind_connector_metadata(planned.kv_connector_metadata)
        self.worker.start_load_kv(None)
        sampled = {
            request_id: [7] if self._computes(planned, request_id, tokens) else []
            for request_id in planned.num_scheduled_tokens
        }
        if planned.num_scheduled_tokens:
            self.worker.wait_for_save()
        sent, received = self.worker.get_finished(planned.finished_req_ids)
        output = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: place for place, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=KVConnectorOutput(
                finished_sending=sent,
                finished_recving=received,
                invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            ),
        )
        self.worker.clear_connector_metadata()
        for outputs in self.scheduler.update_from_output(planned, output).values():
            stats = outputs.scheduler_stats
            if stats is not None and stats.kv_connector_stats:
                self.told.update(stats.kv_connector_stats)
        if not planned.num_scheduled_tokens:
            time.sleep(0.002)
        return planned.total_num_scheduled_tokens

    def _computes(self, planned: SchedulerOutput, request_id: str, tokens: list[int]) -> bool:
        """Writes what the scheduled tokens ask for; whether that was the end of the prompt."""
        for new in planned.scheduled_new_reqs:
            if new.req_id == request_id:
                self._tables[request_id] = list(new.block_ids[0])
                first = new.num_computed_tokens
        cached = planned.scheduled_cached_reqs
        if request_id in cached.req_ids:
            place = cached.req_ids.index(request_id)
            if cached.new_block_ids[place]:
                self._tables[request_id] += cached.new_block_ids[place][0]
            first = cached.num_computed_tokens[place]
        last = first + planned.num_scheduled_tokens[request_id]
        table = self._tables[request_id]
        for block in range(first // BLOCK, -(-last // BLOCK)):
            for layer in self.blocks.values():
                layer[:, table[block]] = _held(tokens, min(last, (block + 1) * BLOCK))
        return last >= len(tokens)

    def _check(self, request_id: str, tokens: list[int]) -> None:
        table = self._tables.pop(request_id)
        for block in range(len(tokens) // BLOCK):
            for name, layer in self.blocks.items():
                held = layer[:, table[block]]
                wanted = torch.full_like(held, _held(tokens, (block + 1) * BLOCK))
                assert torch.equal(held, wanted), f"block {block} of {name}"


def _held(tokens: list[int], end: int) -> float:
    """What each number of a block must be whose last token is the one before `end`."""
    return zlib.crc32(np.array(tokens[:end], np.int32).tobytes()) / 2**32
