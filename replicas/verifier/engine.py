"""Our seam into vLLM's engine client, as Ray Serve LLM builds it.

The client is stock; two things are put beside it: a listener for the statistics
of each step, and a watch on every request.
"""

import os
from typing import Any

import ray
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.llm import LLMConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.platforms import current_platform

from replicas.verifier.request_log import watched
from replicas.verifier.telemetry import StepListener, VerifierTelemetry


class VerifierEngine(VLLMEngine):  # type: ignore[misc]
    """Ray's vLLM engine, whose client also reports to `telemetry`."""

    def __init__(
        self,
        llm_config: LLMConfig,
        *,
        telemetry: VerifierTelemetry,
        replica_id: str,
        rank_in_engine: bool,
        kv_events: KVEventsConfig | None = None,
        shares_kv: bool = True,
    ) -> None:
        super().__init__(llm_config)
        self._telemetry = telemetry
        self._replica_id = replica_id
        self._rank_in_engine = rank_in_engine
        self._kv_events = kv_events
        self._shares_kv = shares_kv

    def _start_async_llm_engine(self, args: Any, config: Any, placement_group: Any) -> Any:
        parallel = config.parallel_config
        if self._rank_in_engine and parallel.world_size == 1:
            parallel.distributed_executor_backend = "uni"
        elif current_platform.is_cpu() and parallel.world_size > 1:
            self._put_ranks_on_nodes(parallel, placement_group)
        if self._kv_events is not None:
            config.kv_events_config = self._kv_events
        if not self._shares_kv:
            config.kv_transfer_config = None
        client = super()._start_async_llm_engine(args, config, placement_group)
        client.logger_manager.stat_loggers.append(StepListener(self._telemetry))
        client.generate = watched(
            client.generate, self._replica_id, self.llm_config.model_id, self._telemetry
        )
        return client

    @staticmethod
    def _put_ranks_on_nodes(parallel: Any, placement_group: Any) -> None:
        """Where Ray gave CPU ranks several nodes, has them run there."""
        # Imports vLLM's Ray executor, which nobody else needs.
        from replicas.verifier.rank_executor import NodesExecutor, is_on_several_nodes

        if is_on_several_nodes(placement_group):
            os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
            parallel.distributed_executor_backend = NodesExecutor
