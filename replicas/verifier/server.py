"""The verifier deployment: vLLM behind Ray Serve LLM, with our front door before it.

It puts the parts together and decides nothing: the engine answers, the front
door lets in, telemetry counts, the registry tells the cluster that we live.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI, HTTPException
from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer
from starlette.requests import Request

from configs.schema import ClusterConfig
from configs.secrets import read_secret
from kvstore.fingerprint import tokenizer_fingerprint
from kvstore.heartbeat import Heartbeat
from kvstore.keys import parse_keys
from kvstore.kv_identity import adapter_fingerprints, kv_format, source_fingerprint
from kvstore.redis_client import redis_settings
from kvstore.registry import Registry
from replicas.errors import WeightsChanged
from replicas.verifier.block_telling import BlockTelling, tells_blocks
from replicas.verifier.drafting_link import DraftingLink
from replicas.verifier.engine import VerifierEngine
from replicas.verifier.front_door import FrontDoor, FrontDoorPolicy
from replicas.verifier.kv_readiness import lmcache_answers
from replicas.verifier.placement import Place
from replicas.verifier.process_setup import log_with_serve, serve_log_kept
from replicas.verifier.telemetry import VerifierTelemetry
from replicas.zone import own_zone

HEARTBEAT_PERIOD_S = 1.0


class LocalWeights(CallbackBase):  # type: ignore[misc]
    """Skips Ray's download step where the weights are a folder on this node.

    It costs a process that imports vLLM, ten seconds or more, to find nothing to do.
    """

    async def on_before_node_init(self) -> None:
        """Called by Ray before it would download."""
        self.ctx.run_init_node = not _is_local(self.llm_config.model_loading_config.model_source)


class Verifier(LLMServer):  # type: ignore[misc]
    """One target verifier: an engine, its front door and its place in the registry.

    Args:
        llm_config: Ray Serve LLM's, with our config inside.
        draft_workers: The deployment of draft workers, so that Serve deploys it with this one.
            It is reached over the registry's addresses, never through Serve.
    """

    async def __init__(  # type: ignore[misc]
        self, llm_config: LLMConfig, draft_workers: DeploymentHandle | None = None
    ) -> None:
        log_with_serve()
        config = ClusterConfig.model_validate(llm_config.experimental_configs["paceline"])
        self.config = config
        context = serve.get_replica_context()
        source = str(llm_config.model_loading_config.model_source)
        self._fingerprint = await asyncio.to_thread(source_fingerprint, source)
        self._adapters = await asyncio.to_thread(adapter_fingerprints, config)
        has_lmcache = config.kv.shared and await asyncio.to_thread(lmcache_answers, config)
        self._telemetry = VerifierTelemetry(
            worker_id=context.replica_id.unique_id,
            node_ip=ray.util.get_node_ip_address(),
            model=config.model.name,
            weights_fingerprint=self._fingerprint,
            zone=own_zone(),
            targets=config.autoscaling,
        )
        if has_lmcache:
            self._telemetry.shares_kv()
        self._block_telling = BlockTelling(config) if tells_blocks(config) else None
        with serve_log_kept():
            await super().__init__(
                llm_config,
                engine_cls=partial(
                    VerifierEngine,
                    telemetry=self._telemetry,
                    replica_id=context.replica_id.unique_id,
                    rank_in_engine=config.rank_in_engine,
                    kv_events=self._block_telling and self._block_telling.engine_config(),
                    shares_kv=has_lmcache,
                ),
            )
        engine = self.engine._engine_client.vllm_config
        self._telemetry.holds(
            (engine.cache_config.num_gpu_blocks or 0) * engine.cache_config.block_size,
            engine.scheduler_config.max_num_seqs,
        )
        await asyncio.to_thread(self._require_same_weights, source)
        if self._block_telling is not None:
            await self._block_telling.start(
                self.engine._engine_client,
                self._fingerprint,
                ray.util.get_node_ip_address(),
                self._telemetry,
            )
        registry = Registry(redis_settings(config), config.name)
        self._drafting_link: DraftingLink | None = None
        if config.drafting.split is not None:
            self._drafting_link = DraftingLink(
                self.engine,
                registry,
                self._telemetry.saw_drafting,
                place=Place(ray.util.get_node_ip_address(), own_zone()),
            )
            await self._drafting_link.start(
                config.model_dump(mode="json"),
                await asyncio.to_thread(_tokenizer_fingerprint, source),
            )
        self._heartbeat = Heartbeat(registry, self._telemetry.report, HEARTBEAT_PERIOD_S)
        await self._heartbeat.start()

    async def __del__(self) -> None:
        # Called by Serve when it stops the replica; a killed one just expires.
        for part in ("_drafting_link", "_block_telling", "_heartbeat"):
            if (running := getattr(self, part, None)) is not None:
                await running.close()
        await super().__del__()

    async def __serve_build_asgi_app__(self) -> FastAPI:
        app: FastAPI = await super().__serve_build_asgi_app__()
        _serve_every_model_by_name(app)
        # Serve still adds exception handlers to it, so it stays a FastAPI app, and
        # the last middleware added is the outermost.
        app.middleware_stack = None
        app.add_middleware(FrontDoor, policy=self._policy(), observer=self._telemetry)
        return app

    def _policy(self) -> FrontDoorPolicy:
        config, door = self.config, self.config.front_door
        model_config = self.engine._engine_client.model_config
        return FrontDoorPolicy(
            keys=parse_keys(read_secret(door.keys)) if door.keys else None,
            domain_secret=read_secret(door.domain_salt).encode() if door.domain_salt else b"",
            vocab_size=model_config.get_vocab_size(),
            max_body_bytes=int(door.max_body_mib * (1 << 20)),
            speculation=config.drafting.drafts,
            longest_draft=config.drafting.max_length,
            explains_routes=config.router.explain,
            weights_fingerprint=self._fingerprint,
            kv_format=kv_format(config),
            adapters=self._adapters,
            model_names=frozenset(
                (config.model.name, *(adapter.name for adapter in config.model.adapters))
            ),
        )

    def _require_same_weights(self, source: str) -> None:
        """Refuses to serve weights that were swapped while they were loaded.

        Raises:
            WeightsChanged: They were; Serve starts the verifier again.
        """
        now = source_fingerprint(source), adapter_fingerprints(self.config)
        if now != (self._fingerprint, self._adapters):
            raise WeightsChanged(source)

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the router ranks by; Serve polls it."""
        return {**await super().record_routing_stats(), **self._telemetry.routing_stats()}


def _serve_every_model_by_name(app: FastAPI) -> None:
    """`GET /v1/models/NAME` for adapters, too; Ray's own route knows only the base model."""

    async def model(name: str, request: Request) -> object:
        cards = await request.app.state.openai_serving_models.show_available_models()
        for card in cards.data:
            if card.id == name:
                return card
        raise HTTPException(404, f"The model `{name}` does not exist.")

    app.add_api_route("/v1/models/{name:path}", model, methods=["GET"])
    app.router.routes.insert(0, app.router.routes.pop())


def _is_local(source: object) -> bool:
    return Path(str(source)).is_dir()


def _tokenizer_fingerprint(source: str) -> str:
    """Of the tokenizer in a folder; a hub id stands for itself."""
    return tokenizer_fingerprint(Path(source)) if _is_local(source) else source
