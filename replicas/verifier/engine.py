"""Our seam into vLLM's engine client, as Ray Serve LLM builds it.

The client is stock; two things are put beside it: a listener for the statistics
of each step, and a watch on every request.
"""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.llm import LLMConfig

from replicas.verifier.request_log import watched
from replicas.verifier.telemetry import StepListener, VerifierTelemetry


class VerifierEngine(VLLMEngine):  # type: ignore[misc]
    """Ray's vLLM engine, whose client also reports to `telemetry`."""

    def __init__(
        self, llm_config: LLMConfig, *, telemetry: VerifierTelemetry, replica_id: str
    ) -> None:
        super().__init__(llm_config)
        self._telemetry = telemetry
        self._replica_id = replica_id

    def _start_async_llm_engine(self, *args: Any) -> Any:
        client = super()._start_async_llm_engine(*args)
        client.logger_manager.stat_loggers.append(StepListener(self._telemetry))
        client.generate = watched(
            client.generate, self._replica_id, self.llm_config.model_id, self._telemetry
        )
        return client
