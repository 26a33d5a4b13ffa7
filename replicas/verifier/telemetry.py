"""Counts of one verifier: for Prometheus, for the router and for `paceline status`.

Four sources meet here: the request log (what clients got), the engine's own
step statistics (what was drafted and accepted), the rank that proposes (by whom, and how
long it took), and the front door (who was refused). Metrics are listed with their units
in docs/metrics.md.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from ray.serve.metrics import Counter
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from configs.request_class import BATCH
from configs.sections.scaling import AutoscalingConfig
from kvstore.kv_messages import FetchCosts, LoadReport
from kvstore.kv_reports import SharingReport
from kvstore.verifier_report import VerifierReport
from replicas.verifier.drafting_metrics import DraftingMetrics
from replicas.verifier.drafting_state import DraftingState
from replicas.verifier.kv_state import SHARING
from replicas.verifier.prefill_meter import PrefillMeter
from replicas.verifier.request_log import Outcome, RequestRecord
from replicas.verifier.request_metrics import RequestMetrics
from replicas.verifier.sharing_metrics import SharingMetrics
from replicas.verifier.work_counts import WorkCounts


class VerifierTelemetry:
    """Implements `RequestObserver` and the front door's observer.

    Args:
        worker_id: Serve's id of the replica.
        node_ip: Address of its node.
        model: What clients send as `model`.
        weights_fingerprint: Which weights these are.
        zone: Of its node; may be empty.
        targets: Of autoscaling, by which requests are on time.
    """

    def __init__(
        self,
        worker_id: str,
        node_ip: str,
        model: str,
        weights_fingerprint: str,
        zone: str = "",
        targets: AutoscalingConfig | None = None,
    ) -> None:
        self._identity: dict[str, Any] = {
            "worker_id": worker_id,
            "node_ip": node_ip,
            "pid": os.getpid(),
            "model": model,
            "weights_fingerprint": weights_fingerprint,
            "zone": zone,
            "started_at_s": time.time(),
        }
        self._prefill = PrefillMeter()
        self._work = WorkCounts(targets)
        self._kv_tokens = self._max_sequences = 0
        self._prefilled_tokens = 0
        self._prefilled_cached_tokens = 0
        self._kv_endpoint = ""
        self._block_tokens = 0
        self._in_flight = 0
        self._running = 0
        self._waiting = 0
        self._kv_cache_usage = 0.0
        self._steps = 0
        self._sequence_steps = 0
        self._outcomes: dict[Outcome, int] = dict.fromkeys(
            ("finished", "aborted", "refused", "failed"), 0
        )
        self._prompt_tokens = 0
        self._cached_prompt_tokens = 0
        self._output_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._accepted_per_position: list[int] = []
        self._ttft_sum_s = 0.0
        self._ttft_count = 0
        self._metrics = RequestMetrics()
        self._drafting = DraftingState()
        self._drafting_metrics: DraftingMetrics | None = None
        self._sharing: SharingReport | None = None
        self._sharing_metrics: SharingMetrics | None = None

    def request_started(self, record: RequestRecord, prompt_tokens: int) -> None:
        """A request reached the engine."""
        self._in_flight += 1
        self._work.started(record, time.monotonic())
        can_wait = record.request_class == BATCH
        self._prefill.started(record.request_id, prompt_tokens, time.monotonic(), can_wait)

    def request_prefilled(self, record: RequestRecord) -> None:
        """A request got its first token."""
        self._prefilled_tokens += record.prompt_tokens
        self._prefilled_cached_tokens += record.cached_tokens
        self._work.prefilled(record)
        self._prefill.first_token(
            record.request_id, record.prompt_tokens, record.cached_tokens, time.monotonic()
        )

    def request_ended(self, record: RequestRecord, outcome: Outcome, duration_s: float) -> None:
        """A request left the engine, one way or another."""
        self._in_flight -= 1
        self._work.ended(record, duration_s, time.monotonic())
        self._prefill.ended(record.request_id)
        self._outcomes[outcome] += 1
        self._prompt_tokens += record.prompt_tokens
        self._cached_prompt_tokens += record.cached_tokens
        metrics = self._metrics
        of_class = {"class": record.request_class}
        metrics.requests.inc(tags={"outcome": outcome, **of_class})
        _add(metrics.prompt_tokens, record.prompt_tokens)
        _add(metrics.cached_prompt_tokens, record.cached_tokens)
        metrics.duration_s.observe(duration_s, tags=of_class)
        if record.ttft_s is not None:
            self._ttft_sum_s += record.ttft_s
            self._ttft_count += 1
            metrics.ttft_s.observe(record.ttft_s, tags=of_class)

    def refused(self, reason: str) -> None:
        """The front door refused a request; `reason` is one of a few words."""
        self._metrics.refused.inc(tags={"reason": reason})

    def saw_step(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """Takes in the statistics of one engine step."""
        metrics = self._metrics
        if iteration is not None and iteration.num_generation_tokens:
            self._sequence_steps += len(iteration.time_to_first_tokens_iter) + len(
                iteration.inter_token_latencies_iter
            )
            self._output_tokens += iteration.num_generation_tokens
            metrics.output_tokens.inc(iteration.num_generation_tokens)
        if scheduler is None:
            return
        if told := (scheduler.kv_connector_stats or {}).get(SHARING):
            self._saw_sharing(told)
        self._steps += 1
        self._running = scheduler.num_running_reqs
        self._waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
        self._kv_cache_usage = scheduler.kv_cache_usage
        if (spec := scheduler.spec_decoding_stats) is not None:
            self._saw_drafts(
                spec.num_draft_tokens, spec.num_accepted_tokens, spec.num_accepted_tokens_per_pos
            )

    def shares_kv(self) -> None:
        """Shared KV blocks can be fetched from the start on."""
        self._sharing = SharingReport()

    def _saw_sharing(self, told: dict[str, Any]) -> None:
        if self._sharing_metrics is None:
            self._sharing_metrics = SharingMetrics()
        self._sharing = msgspec.convert(told, SharingReport)
        self._sharing_metrics.saw(self._sharing)

    def _saw_drafts(self, drafted: int, accepted: int, per_position: Sequence[int]) -> None:
        self._drafted_tokens += drafted
        self._accepted_tokens += accepted
        missing = len(per_position) - len(self._accepted_per_position)
        self._accepted_per_position += [0] * missing
        for position, count in enumerate(per_position):
            self._accepted_per_position[position] += count
        _add(self._metrics.drafted_tokens, drafted)
        _add(self._metrics.accepted_tokens, accepted)

    def saw_drafting(self, state: DraftingState) -> None:
        """Takes in what the rank that proposes says, once a second."""
        if self._drafting_metrics is None:
            self._drafting_metrics = DraftingMetrics()
        self._drafting_metrics.saw(state)
        self._drafting = state

    def relays_blocks_at(self, kv_endpoint: str, block_tokens: int) -> None:
        """Routers can learn at `kv_endpoint` which KV blocks are held, of so many tokens each."""
        self._kv_endpoint, self._block_tokens = kv_endpoint, block_tokens

    def holds(self, kv_tokens: int, max_sequences: int) -> None:
        """So many tokens fit in the KV cache, and so many sequences in a step."""
        self._kv_tokens, self._max_sequences = kv_tokens, max_sequences

    def routing_stats(self) -> dict[str, float | str]:
        """What the router ranks by, and when it was so (wall clock, seconds)."""
        return {
            "in_flight": self._in_flight,
            "at_s": time.time(),
            "kv_endpoint": self._kv_endpoint,
        }

    def load_report(self) -> LoadReport:
        """The same for routers that follow this verifier; called from another thread."""
        cost = self._prefill.cost()
        return LoadReport(
            in_flight=max(0, self._in_flight),
            queued_tokens=self._prefill.queued_tokens,
            prefill_base_s=cost.base_s,
            prefill_s_per_token=cost.s_per_token,
            prompt_tokens=self._prefilled_tokens,
            cached_prompt_tokens=self._prefilled_cached_tokens,
            at_s=time.time(),
            fetch=_fetch_costs(self._sharing),
            waiting=self._prefill.waiting,
            queued_batch_tokens=self._prefill.queued_batch_tokens,
        )

    def report(self) -> VerifierReport:
        """What the registry tells the cluster about this verifier, once a heartbeat.

        Sets the gauges, too: Ray exports a gauge only while it is being set.
        """
        self._metrics.in_flight.set(self._in_flight)
        self._metrics.waiting.set(self._waiting)
        self._metrics.kv_cache_usage.set(self._kv_cache_usage)
        return VerifierReport(
            **self._identity,
            requests_running=self._running,
            requests_waiting=self._waiting,
            requests_in_flight=self._in_flight,
            requests_finished=self._outcomes["finished"],
            requests_failed=self._outcomes["failed"],
            requests_aborted=self._outcomes["aborted"],
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_prompt_tokens,
            output_tokens=self._output_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            accepted_per_position=list(self._accepted_per_position),
            steps=self._steps,
            sequence_steps=self._sequence_steps,
            kv_cache_usage=self._kv_cache_usage,
            ttft_sum_s=self._ttft_sum_s,
            ttft_count=self._ttft_count,
            draft_sources=self._drafting.sources,
            draft_workers=self._drafting.workers,
            deadline_misses=self._drafting.deadline_misses,
            draft_wait_s=self._drafting.wait_s,
            step_s=self._drafting.step_s,
            governor=self._drafting.governor,
            sharing=self._sharing,
            kv_endpoint=self._kv_endpoint,
            block_tokens=self._block_tokens,
            queued_tokens=self._prefill.queued_tokens,
            queued_batch_tokens=self._prefill.queued_batch_tokens,
            kv_tokens=self._kv_tokens,
            max_sequences=self._max_sequences,
            **self._work.told(time.monotonic()),
            reported_at_s=time.time(),
        )


def _fetch_costs(sharing: SharingReport | None) -> FetchCosts | None:
    """What a router needs of it; zeros where nothing was fetched yet, None where nothing can be."""
    if sharing is None or not sharing.is_healthy:
        return None
    if sharing.load is None:
        return FetchCosts(0.0, 0.0, 0.0, 0.0)
    load, redis = sharing.load, sharing.tiers.get("redis")
    return FetchCosts(
        host_base_s=load.base_s,
        host_s_per_token=load.s_per_token,
        storage_base_s=load.base_s + redis.base_s if redis else 0.0,
        storage_s_per_token=load.s_per_token + redis.s_per_token if redis else 0.0,
    )


def _add(counter: Counter, count: int) -> None:
    """Ray's counters refuse to grow by nothing."""
    if count:
        counter.inc(count)


class StepListener(AggregateStatLoggerBase):  # type: ignore[misc]
    """Hands vLLM's statistics of every engine step to our telemetry."""

    def __init__(self, telemetry: VerifierTelemetry) -> None:
        self._telemetry = telemetry

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._telemetry.saw_step(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
