"""The draft worker deployment: puts the parts of one worker together and decides nothing.

Serve only keeps it alive. Verifiers find it in the registry and ask it over its own socket.
"""

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve

from configs.model_folder import read_model
from configs.schema import ClusterConfig
from configs.sections.drafting import SplitDrafting
from kvstore.cluster_token import cluster_token
from kvstore.draft_report import DraftModelReport, DraftWorkerReport, NgramReport
from kvstore.fingerprint import tokenizer_fingerprint
from kvstore.heartbeat import Heartbeat
from kvstore.redis_client import redis_settings
from kvstore.registry import Registry
from replicas.draft.drafters import make_drafters
from replicas.draft.fleet_index import FleetIndex, FleetSettings, FleetStats
from replicas.draft.listening import advertised_host
from replicas.draft.model_drafter import make_model
from replicas.draft.model_telemetry import ModelReporter, ModelTelemetry
from replicas.draft.ngram_telemetry import NgramTelemetry
from replicas.draft.service import DraftService, ServiceSettings
from replicas.draft.tally import ServiceStats
from replicas.draft.telemetry import DraftTelemetry
from replicas.draft.vllm_engine import draft_model_environment
from replicas.errors import DraftModelFailed, ReplicaError, UnknownVocabulary
from replicas.messages import SPOKEN, Codec
from replicas.verifier.process_setup import log_with_serve
from replicas.zone import own_zone

HEARTBEAT_PERIOD_S = 1.0
LEAVING_S = 2.5
"""How long a worker that leaves still answers after it left the registry."""


def fingerprint_of(model_source: str) -> str:
    """Of the tokenizer in a folder; a hub id stands for itself.

    Raises:
        FileNotFoundError: There is no tokenizer in the folder.
    """
    folder = Path(model_source)
    return tokenizer_fingerprint(folder) if folder.is_dir() else model_source


def vocab_size_of(config: ClusterConfig, model_source: str) -> int:
    """Tokens of the model's vocabulary, by its folder or else by `model.shape`.

    Raises:
        UnknownVocabulary: Neither says it.
    """
    facts = read_model(Path(model_source))
    if facts.architecture is not None:
        return facts.architecture.vocab_size
    if config.model.shape is not None:
        return config.model.shape.vocab_size
    reason = facts.unreadable or (
        "its config.json names none" if facts.folder else "it is no folder on this node"
    )
    raise UnknownVocabulary(model_source, reason)


def service_settings(config: ClusterConfig, model_source: str, node_ip: str) -> ServiceSettings:
    """What the config says to a draft service.

    Args:
        config: The cluster's.
        model_source: Folder or hub id of the target model.
        node_ip: Address of this node; advertised where the service listens on all of them.

    Raises:
        UnknownVocabulary: Nothing says how many tokens the model has.
    """
    split = config.drafting.split or SplitDrafting()
    return ServiceSettings(
        host=config.ports.host,
        advertised_host=advertised_host(config.ports.host, node_ip),
        first_port=config.ports.drafts_from,
        last_port=config.ports.drafts_to,
        vocab_size=vocab_size_of(config, model_source),
        memory_bytes=split.workers.memory_mib << 20,
        ahead=split.ahead,
    )


def draft_worker_environment(config: ClusterConfig) -> dict[str, str]:
    """Environment variables of a draft worker; the config's own come last."""
    split = config.drafting.split or SplitDrafting()
    env = {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": str(max(1, int(split.workers.cpus))),
    }
    if "model" in split.workers.kinds:
        env |= draft_model_environment(on_gpu=split.workers.gpus > 0)
    return env | split.workers.env


def report_of(
    service: DraftService,
    stats: ServiceStats,
    *,
    worker_id: str,
    node_ip: str,
    tokenizer_fingerprint: str,
    started_at_s: float,
    fleet: FleetStats | None = None,
    zone: str = "",
    model: DraftModelReport | None = None,
) -> DraftWorkerReport:
    """What the registry tells the cluster about a draft worker.

    Args:
        service: Its service.
        stats: Of the service, since the last report.
        worker_id: Known to nobody else.
        node_ip: Address of its node.
        tokenizer_fingerprint: Of the target it drafts for.
        started_at_s: Wall clock, seconds.
        fleet: Of its n-gram index, where it has one.
        zone: Of its node; may be empty.
        model: Of its draft model, where it has one.

    Raises:
        ReplicaError: The service died, and must not be announced.
    """
    if not service.is_alive:
        raise ReplicaError("a draft service that died is not announced")
    return DraftWorkerReport(
        worker_id=worker_id,
        node_ip=node_ip,
        pid=os.getpid(),
        endpoint=service.endpoint,
        protocols=list(SPOKEN),
        kinds=service.kinds,
        tokenizer_fingerprint=tokenizer_fingerprint,
        vocab_size=service.vocab_size,
        sessions=stats.sessions,
        context_tokens=stats.context_tokens,
        asks=stats.asks,
        drafted_tokens=stats.drafted_tokens,
        malformed=stats.malformed,
        evicted_sessions=stats.evicted_sessions,
        busy_ratio=stats.busy_ratio,
        started_at_s=started_at_s,
        reported_at_s=time.time(),
        ngrams=ngram_report(fleet) if fleet is not None else None,
        zone=zone,
        model=model,
    )


def ngram_report(stats: FleetStats) -> NgramReport:
    """What the registry tells the cluster about a worker's n-grams."""
    index, exchange = stats.index, stats.exchange
    return NgramReport(
        tokens=index.tokens,
        documents=index.documents,
        held_bytes=index.held_bytes,
        corpus_tokens=stats.corpus_tokens,
        lookups=index.lookups,
        hits=index.hits,
        evicted_tokens=index.evicted_tokens,
        connected=exchange.connected,
        published=exchange.published,
        received=exchange.received,
        lost=exchange.dropped + exchange.missing,
        garbage=exchange.garbage,
        delay_s=exchange.delay_s,
        gates_closed=stats.gates_closed,
    )


class DraftWorker:
    """One draft worker: its service, and its place in the registry."""

    async def __init__(  # type: ignore[misc]
        self, config: dict[str, Any], model_source: str, draft_source: str = ""
    ) -> None:
        log_with_serve()
        parsed = ClusterConfig.model_validate(config)
        self._node_ip = ray.util.get_node_ip_address()
        self._zone = own_zone()
        self._worker_id = serve.get_replica_context().replica_id.unique_id
        self._started_at_s = time.time()
        self._fingerprint = await asyncio.to_thread(fingerprint_of, model_source)
        self._settings = await asyncio.to_thread(
            service_settings, parsed, model_source, self._node_ip
        )
        codec = Codec(await asyncio.to_thread(cluster_token, parsed))
        self._telemetry = DraftTelemetry()
        self._ngram_telemetry = NgramTelemetry()
        self._model_telemetry = ModelTelemetry()
        self._model_reporter = ModelReporter(draft_source, time.monotonic())
        redis = redis_settings(parsed)
        self._registry = Registry(redis, parsed.name)
        # No other worker, and no earlier one of this name, says it.
        origin = f"{self._worker_id}/{secrets.token_hex(4)}"
        fleet = FleetSettings.of(parsed, self._fingerprint, self._settings.vocab_size, origin)
        self._fleet = FleetIndex(fleet, redis) if fleet is not None else None
        self._model = await asyncio.to_thread(
            make_model, parsed, draft_source, model_source, self._settings.vocab_size
        )
        self._service = DraftService(
            self._settings,
            codec,
            make_drafters(parsed, self._fleet),
            self._fleet.ended if self._fleet is not None else None,
            self._model,
        )
        self._service.start()
        if self._model is not None:
            timeout_s = parsed.verifiers.start_timeout_s
            # Who is not ready is not announced.
            if not await asyncio.to_thread(self._model.wait_until_ready, timeout_s):
                raise DraftModelFailed(draft_source)
        if self._fleet is not None:
            self._fleet.start()
        self._heartbeat = Heartbeat(self._registry, self._report, HEARTBEAT_PERIOD_S)
        await self._heartbeat.start()

    async def __del__(self) -> None:
        # Called by Serve when it stops the replica; a killed one just expires.
        if (heartbeat := getattr(self, "_heartbeat", None)) is not None:
            await heartbeat.close()
            # Verifiers see within a second that it is gone, and ask elsewhere from then on.
            await asyncio.sleep(LEAVING_S)
        if (service := getattr(self, "_service", None)) is not None:
            await asyncio.to_thread(service.close)
        if (fleet := getattr(self, "_fleet", None)) is not None:
            await asyncio.to_thread(fleet.close)
        if (registry := getattr(self, "_registry", None)) is not None:
            await registry.close()

    async def check_health(self) -> None:
        """Called by Serve again and again.

        Raises:
            ReplicaError: The service's thread died; its log says why.
        """
        if not self._service.is_alive:
            raise ReplicaError("the draft service's thread died; the log says why")

    def _report(self) -> DraftWorkerReport:
        now_s = time.monotonic()
        stats = self._service.stats(now_s)
        fleet = self._fleet.stats(now_s) if self._fleet is not None else None
        self._telemetry.saw(stats)
        if fleet is not None:
            self._ngram_telemetry.saw(fleet)
        model = None
        if self._model is not None:
            model = self._model_reporter.report(self._model.stats(), now_s)
            self._model_telemetry.saw(model)
        return report_of(
            self._service,
            stats,
            worker_id=self._worker_id,
            node_ip=self._node_ip,
            tokenizer_fingerprint=self._fingerprint,
            started_at_s=self._started_at_s,
            fleet=fleet,
            zone=self._zone,
            model=model,
        )
