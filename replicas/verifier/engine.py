"""Our seam into vLLM's engine client, as Ray Serve LLM builds it.

The client is stock; two things are put beside it: a listener for the statistics
of each step, and a watch on every request.
"""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.llm import LLMConfig
from vllm.config.kv_events import KVEventsConfig

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
        if self._rank_in_engine and config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"
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
