"""Answers HAProxy's question: which verifier gets this request?

Stands in for Ray Serve LLM's own router deployment and keeps its contract with
HAProxy. It differs in one thing: no body, however hostile, makes routing fail; what
can't be read is routed by load, and the front door refuses it properly. Of a long body only
the beginning comes, which is read as far as it goes (`router/cut_body.py`).

    POST /internal/route   body: the client's request
    200 {"host", "port", "replica_id"}     HAProxy streams to this replica
        "request_headers", too             which it adds to the request, where routes are explained
    503                                    no verifier is ready
"""

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from ray import serve
from ray.serve._private.constants import SERVE_INGRESS_ROUTER_HEADER_PREFIX, SERVE_SESSION_ID
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from router.cut_body import closed
from router.types import RoutingNote

logger = logging.getLogger(__name__)

ROUTABLE_FIELDS = ("messages", "prompt", "input")
NOTE_HEADER = f"{SERVE_INGRESS_ROUTER_HEADER_PREFIX}paceline-route"
"""Goes to the verifier with the request; nobody else can set it, as HAProxy sees to."""

CUT_HEADER = "x-body-truncated"
"""From HAProxy: bytes of the body that are there, and of all of it, as `262144/400000`."""

app = FastAPI(openapi_url=None)


def part_there(cut: str | None) -> float:
    """Part of the body that is there, above 0, at most 1.

    Args:
        cut: Value of `CUT_HEADER`; None where the request has none.
    """
    there, _, of_all = (cut or "").partition("/")
    if not there.isdigit() or not of_all.isdigit():
        return 1.0
    return min(1.0, max(1, int(there)) / max(1, int(of_all)))


def routing_payload(body: bytes, is_cut: bool = False) -> SimpleNamespace | None:
    """The request as the routing policies see it; None for what can't be read or routed on."""
    try:
        data: Any = msgspec.json.decode((closed(body) or b"") if is_cut else body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not any(data.get(field) for field in ROUTABLE_FIELDS):
        return None
    return SimpleNamespace(**data)


# Serve copies the app, and what it refers to, right here: what it needs stands above.
@serve.ingress(app)
class IngressRouter:
    """Picks a verifier through the deployment's own request router.

    Args:
        server: The verifier deployment.
        explains: Whether the verifier is told why a request comes to it.
    """

    def __init__(self, server: DeploymentHandle, explains: bool = False) -> None:
        self._explains = explains
        self._handle = server
        self._handle._init()

    @app.post("/internal/route")
    async def route(self, request: Request) -> Response:
        """Where HAProxy should send the request whose body this is."""
        part = part_there(request.headers.get(CUT_HEADER))
        payload = routing_payload(await request.body(), is_cut=part < 1.0)
        note = RoutingNote(is_wanted=self._explains, part=part)
        handle = self._handle
        # Tells whose cached blocks may serve the request. It may be a secret: never logged.
        if shown := request.headers.get(SERVE_SESSION_ID):
            handle = handle.options(session_id=shown)
        try:
            # The request goes out through HAProxy, so no slot is reserved for it here.
            async with handle.choose_replica(payload, note, _reserve=False) as selection:
                replica = selection._replica
        except (RuntimeError, DeploymentUnavailableError) as error:
            logger.warning("no verifier to route to: %s", error)
            return Response(status_code=503)
        if replica.backend_http_endpoint is None:
            logger.warning("verifier %s has no HTTP port yet", selection.replica_id)
            return Response(status_code=503)
        host, port = replica.backend_http_endpoint
        where: dict[str, Any] = {
            "host": host,
            "port": port,
            "replica_id": replica.replica_id.to_full_id_str(),
        }
        if note.text:
            where["request_headers"] = {NOTE_HEADER: note.text}
        return Response(msgspec.json.encode(where), media_type="application/json")
