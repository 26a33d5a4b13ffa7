"""Verifiers that answer at once, behind the real way to them: HAProxy, our router, Ray Serve.

One Ray, one HAProxy, an application for each routing policy, all of them side by side.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

sys.path.append("tests/support")
from listening import ports_of
from ray_head import serving

from configs.schema import ClusterConfig

VERIFIERS = 2
ROOT = "root"
"""Name of the application at `/`."""
ANSWER = (
    b'{"id":"cmpl-0","object":"text_completion","created":0,"model":"instant","choices":'
    b'[{"index":0,"text":"a","message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}'
)

app = FastAPI(openapi_url=None)


@app.get("/health")
@app.get("/v1/models")
async def models() -> Response:
    """Says that it is there; vllm-router asks for both."""
    listed = b'{"object":"list","data":[{"id":"instant","object":"model"}]}'
    return Response(listed, media_type="application/json")


@app.post("/v1/completions")
@app.post("/v1/chat/completions")
async def answer(request: Request) -> Response:
    """The same to everyone, once all of the request is there."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


def applications(policies: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Serve applications by route prefix, from class path and arguments of their routers."""
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from router.ingress import IngressRouter

    @serve.ingress(app)
    class InstantVerifier:
        """Has no engine."""

    built = {}
    for prefix, (router_class, arguments) in policies.items():
        verifiers = serve.deployment(
            InstantVerifier,
            num_replicas=VERIFIERS,
            ray_actor_options={"num_cpus": 0},
            logging_config={"enable_access_log": False},
            request_router_config=RequestRouterConfig(
                request_router_class=router_class, request_router_kwargs=arguments
            ),
        ).bind()
        router = serve.deployment(
            IngressRouter,
            max_ongoing_requests=1000,
            ray_actor_options={"num_cpus": 0},
            logging_config={"enable_access_log": False},
        ).bind(server=verifiers)
        built[prefix] = verifiers._with_ingress_request_router(router)
    return built


@contextmanager
def running(
    config: ClusterConfig, policies: Mapping[str, tuple[str, dict[str, Any]]]
) -> Iterator[str]:
    """Starts Ray, HAProxy and an application for each policy; gives HAProxy's address."""
    with serving(config, {"PYTHONPATH": f"{Path(__file__).parent}:{Path.cwd()}"}):
        from ray import serve

        for prefix, application in applications(policies).items():
            serve.run(application, name=prefix.strip("/") or ROOT, route_prefix=prefix)
        yield f"http://127.0.0.1:{config.ports.http}"


def own_urls(config: ClusterConfig) -> list[str]:
    """Of the verifiers of the application at `/`, past HAProxy."""
    ports = config.ports
    its = ports_of(f"{ROOT}:InstantVerifier", ports.replicas_from, ports.replicas_to)
    return [f"http://127.0.0.1:{port}" for port in its]
