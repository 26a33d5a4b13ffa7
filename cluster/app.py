"""Builds the Serve application: verifiers behind our router, and their draft workers.

`paceline up`, `serve run` and `serve deploy` all come through `build_app`.
"""

from typing import Any

import ray
from ray import serve
from ray.llm._internal.serve.core.ingress.builder import _build_direct_streaming_llm_deployment
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.llm import LLMConfig

from cluster.autoscaling import neutral
from cluster.environment import require_fast_path
from cluster.models import resolve_source
from cluster.placement import STRATEGY, Labels, near_verifiers, selector
from configs import ClusterConfig, ConfigError, check, gather_facts, parse_config
from configs.sections.drafting import DraftWorkerConfig
from replicas.draft.worker import DraftWorker, draft_worker_environment
from replicas.verifier.engine_options import engine_args, verifier_environment
from router.ingress import IngressRouter

ROUTERS = {
    "least_loaded": "router.serve_router:LeastLoadedRouter",
    "prefix_aware": "router.serve_router:PrefixAwareRouter",
}
ROUTING_STATS_PERIOD_S = 2.0
HEALTH_CHECK_PERIOD_S = 5.0
ROUTER_MAX_ONGOING_REQUESTS = 1000
DRAFT_WORKER_SHUTDOWN_S = 6.0
# Each request has one line already, from the verifier, with what it cost.
LOGGING = {"enable_access_log": False}


def build_app(config: ClusterConfig | dict[str, Any]) -> Application:
    """The application for one cluster.

    Args:
        config: A config, or the same as a mapping, as `serve deploy` hands over `args`.

    Returns:
        An application for `serve.run`, or for `import_path: cluster.app:build_app`.

    Raises:
        ConfigError: The config can't work; every problem is named.
        FastPathMissing: This process lacks the environment of the direct path.
    """
    if not isinstance(config, ClusterConfig):
        config = parse_config(config, source="args")
    require_fast_path(config)
    if problems := check(config, gather_facts(config), "args", secrets=True):
        raise ConfigError(problems)
    nodes = ray.nodes() if ray.is_initialized() else []
    labels = selector(config.may_use_head, nodes)
    verifiers = _build_direct_streaming_llm_deployment(llm_config(config, labels))
    split = config.drafting.split
    if split is not None and config.most_draft_workers:
        near = near_verifiers(labels, config.hardware.gpu_type, split.workers.gpus > 0, nodes)
        verifiers = _with_draft_workers(verifiers, config, split.workers, near)
    return _with_router(verifiers, config.router.explain)


def _with_draft_workers(
    verifiers: Application,
    config: ClusterConfig,
    workers: DraftWorkerConfig,
    near: list[Labels],
) -> Application:
    """Has Serve deploy draft workers with the verifiers, which find them by the registry."""
    place: dict[str, Any] = {"label_selector": near[0]} if near[0] else {}
    if near[1:]:
        place["fallback_strategy"] = [{"label_selector": labels} for labels in near[1:]]
    drafters = serve.deployment(
        DraftWorker,
        **_number(config, workers.replicas, config.most_draft_workers),
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        graceful_shutdown_timeout_s=DRAFT_WORKER_SHUTDOWN_S,
        logging_config=LOGGING,
        ray_actor_options={
            "num_cpus": workers.cpus,
            "num_gpus": workers.gpus,
            "resources": workers.resources,
            **place,
            "runtime_env": {"env_vars": draft_worker_environment(config)},
        },
    )
    models = config.folders.models
    source = resolve_source(config.model.source, models)
    draft_source = resolve_source(workers.draft.source, models) if workers.draft else ""
    bound = verifiers._bound_deployment
    return bound.bind(
        *bound.init_args,
        **bound.init_kwargs,
        draft_workers=drafters.bind(config.model_dump(mode="json"), source, draft_source),
    )


def _with_router(verifiers: Application, explains: bool) -> Application:
    """Puts our router before the verifiers, as Ray Serve LLM puts its own."""
    router = serve.deployment(
        IngressRouter,
        max_ongoing_requests=ROUTER_MAX_ONGOING_REQUESTS,
        logging_config=LOGGING,
        # Runs beside every proxy, on nodes without any free core, too.
        ray_actor_options={"num_cpus": 0},
    )
    return verifiers._with_ingress_request_router(router.bind(server=verifiers, explains=explains))


def llm_config(config: ClusterConfig, labels: dict[str, str] | None = None) -> LLMConfig:
    """The verifier deployment as Ray Serve LLM describes it.

    Args:
        config: The cluster's.
        labels: Of the nodes that its ranks may run on.
    """
    return LLMConfig(
        model_loading_config={
            "model_id": config.model.name,
            "model_source": resolve_source(config.model.source, config.folders.models),
        },
        engine_kwargs=engine_args(config),
        server_cls="replicas.verifier.server:Verifier",
        runtime_env={
            "env_vars": verifier_environment(config),
            "worker_process_setup_hook": "replicas.verifier.process_setup.set_up",
        },
        callback_config={"callback_class": "replicas.verifier.server.LocalWeights"},
        deployment_config=_deployment(config)
        | ({"placement_group_bundle_label_selector": [labels]} if labels else {}),
        # How our own section reaches the replica: Serve LLM hands its config through.
        experimental_configs={"paceline": config.model_dump(mode="json")},
        **_hardware(config),
    )


def _deployment(config: ClusterConfig) -> dict[str, Any]:
    verifiers = config.verifiers
    return {
        **_number(config, verifiers.replicas, config.most_verifiers),
        "max_constructor_retry_count": verifiers.start_attempts,
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": 30,
        "logging_config": LOGGING,
        "graceful_shutdown_timeout_s": verifiers.drain_s + verifiers.longest_stream_s,
        # The engine's ranks hold the resources; the replica itself needs none.
        "ray_actor_options": {"num_cpus": 0},
        "request_router_config": RequestRouterConfig(
            request_router_class=ROUTERS[config.router.policy],
            request_router_kwargs=_router_settings(config),
            request_routing_stats_period_s=ROUTING_STATS_PERIOD_S,
        ),
    }


def _number(config: ClusterConfig, least: int, most: int) -> dict[str, Any]:
    """How many replicas of a deployment, or between which numbers."""
    if config.autoscaling is None:
        return {"num_replicas": least}
    return {"autoscaling_config": neutral(least, most)}


def _router_settings(config: ClusterConfig) -> dict[str, Any]:
    if config.router.policy != "prefix_aware":
        return {}
    return {
        "source": resolve_source(config.model.source, config.folders.models),
        "config": config.model_dump(mode="json"),
    }


def _hardware(config: ClusterConfig) -> dict[str, Any]:
    verifiers, hardware = config.verifiers, config.hardware
    rank = {"CPU": verifiers.cpus, **verifiers.resources}
    ranks = verifiers.tensor_parallel * verifiers.pipeline_parallel
    if hardware.kind == "cpu":
        return {
            "accelerator_config": {"kind": "cpu"},
            "placement_group_config": {"bundles": [rank] * ranks, "strategy": STRATEGY},
        }
    return {
        "accelerator_type": hardware.gpu_type,
        "placement_group_config": {"bundles": [rank | {"GPU": 1}] * ranks, "strategy": STRATEGY},
    }
