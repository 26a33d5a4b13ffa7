"""What every request cost: one INFO line when it ends, and the running totals.

It stands between vLLM's HTTP layer and its engine, where each request passes
once whatever its route. It never looks at text.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from configs.request_class import INTERACTIVE
from replicas.verifier.request_speculation import class_told

logger = logging.getLogger(__name__)

Outcome = Literal["finished", "aborted", "refused", "failed"]


@dataclass
class RequestRecord:
    """One request on its way. Times in seconds, monotonic; counts in tokens."""

    request_id: str
    model: str
    started_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: dict[int, int] = field(default_factory=dict)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ttft_s: float | None = None
    request_class: str = INTERACTIVE

    def saw(self, output: RequestOutput, is_delta: bool, now_s: float) -> None:
        """Takes in one output of the engine."""
        if self.ttft_s is None:
            # A request that is answered at once has only one output, at its end:
            # the engine knows when the first token came.
            engine_s = output.metrics.first_token_latency if output.metrics else 0.0
            self.ttft_s = engine_s or now_s - self.started_s
        self.prompt_tokens = len(output.prompt_token_ids or ())
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens or 0)
        for choice in output.outputs:
            before = self.output_tokens.get(choice.index, 0) if is_delta else 0
            self.output_tokens[choice.index] = before + len(choice.token_ids)
            if (spec := choice.spec_decode_metrics) is not None:
                self.drafted_tokens += spec.num_draft_tokens
                self.accepted_tokens += sum(n * times for n, times in enumerate(spec.histogram))


class RequestObserver(Protocol):
    """Told when a request starts, when its first token comes, and how it ended."""

    def request_started(self, record: RequestRecord, prompt_tokens: int) -> None: ...

    def request_prefilled(self, record: RequestRecord) -> None: ...

    def request_ended(self, record: RequestRecord, outcome: Outcome, duration_s: float) -> None: ...


Generate = Callable[..., AsyncIterator[RequestOutput]]


def watched(generate: Generate, replica_id: str, model: str, observer: RequestObserver) -> Generate:
    """`generate` of a vLLM engine client, with every request logged and counted.

    Args:
        generate: The bound method of the engine client.
        replica_id: Serve's id of this replica, for the log line.
        model: Name of the base model, for the log line.
        observer: Told of each start and end.
    """

    async def watched_generate(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        adapter = options.get("lora_request")
        record = RequestRecord(
            request_id,
            adapter.lora_name if adapter else model,
            time.monotonic(),
            request_class=class_told(sampling_params),
        )
        is_delta = sampling_params.output_kind == RequestOutputKind.DELTA
        outcome: Outcome = "failed"
        observer.request_started(record, prompt_length(prompt))
        try:
            async with aclosing(
                generate(prompt, sampling_params, request_id, **options)  # type: ignore[type-var]
            ) as outputs:
                async for output in outputs:
                    is_first = record.ttft_s is None
                    record.saw(output, is_delta, time.monotonic())
                    if is_first:
                        observer.request_prefilled(record)
                    if output.finished:
                        outcome = "finished"
                    yield output
        except (asyncio.CancelledError, GeneratorExit):
            # HTTP layers stop listening after the last output, too.
            outcome = outcome if outcome == "finished" else "aborted"
            raise
        except (VLLMClientError, ValueError):
            outcome = "refused"
            raise
        finally:
            duration_s = time.monotonic() - record.started_s
            try:
                observer.request_ended(record, outcome, duration_s)
            except Exception:  # counting must never cost an answer
                logger.exception("request id=%s could not be counted", record.request_id)
            _log(record, replica_id, outcome, duration_s)

    return watched_generate


def prompt_length(prompt: Any) -> int:
    """Tokens of a prompt as vLLM's HTTP layer hands it to the engine; 0 where it can't be seen."""
    if isinstance(prompt, dict):
        prompt = prompt.get("prompt_token_ids")
    return len(prompt) if isinstance(prompt, list | tuple) else 0


def _log(record: RequestRecord, replica_id: str, outcome: Outcome, duration_s: float) -> None:
    logger.info(
        "request id=%s replica=%s model=%s class=%s outcome=%s prompt_tokens=%d cached_tokens=%d "
        "output_tokens=%d drafted=%d accepted=%d ttft_ms=%s duration_ms=%.1f",
        record.request_id,
        replica_id,
        record.model,
        record.request_class,
        outcome,
        record.prompt_tokens,
        record.cached_tokens,
        sum(record.output_tokens.values()),
        record.drafted_tokens,
        record.accepted_tokens,
        "-" if record.ttft_s is None else f"{record.ttft_s * 1e3:.1f}",
        duration_s * 1e3,
    )
