"""The verifier's front door: ASGI middleware around vLLM's own OpenAI app.

It knows who asks, lets in what can be served, and sends errors back in one shape.
What a request may be is decided in the pure modules beside it: `keys`, `routes`,
`request_headers`, `request_checks`, `openai_errors`. Here is only the order of things.

    key -> route -> headers -> size -> JSON -> fields -> [vLLM] -> errors reshaped

It stands outermost on the replica's own port too, so a client that goes round the
proxy meets the same door.
"""

import asyncio
import logging
import traceback
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from configs.request_class import INTERACTIVE, PRIORITIES, class_of
from kvstore.keys import NO_TENANT
from replicas.errors import ClientLeft, MethodNotServed, NotAuthenticated, RequestRefused
from replicas.verifier.openai_errors import REFUSALS, of_refusal, of_status
from replicas.verifier.policy import Caller, FrontDoorPolicy
from replicas.verifier.request_body import Upload, encode, parse_object, too_large
from replicas.verifier.request_checks import checked
from replicas.verifier.request_fields import FIELDS
from replicas.verifier.request_headers import (
    Headers,
    check_headers,
    declared_length,
    explanation,
    forwarded,
    has_body,
    key_of,
    request_id_of,
)
from replicas.verifier.request_speculation import CLASS
from replicas.verifier.response import ShapedResponse, send_error
from replicas.verifier.routes import GENERATING, BodyKind, Route, find_route, is_open, methods_of
from replicas.verifier.sharing import DOMAIN

__all__ = ["CALLER", "Caller", "FrontDoor", "FrontDoorPolicy", "Observer"]

logger = logging.getLogger(__name__)

CALLER = "caller"
"""Where the ASGI scope's `state` holds the `Caller`, for the layers behind."""

HANG_UP_S = 2.0
"""How long vLLM may take to end a request whose client has left, before it is cancelled."""

_POLICY_VIOLATION = 1008


class Observer(Protocol):
    """Counts what the front door does."""

    def refused(self, reason: str) -> None:
        """A request was not let in; `reason` is one of a dozen words."""


class FrontDoor:
    """The outermost layer of a verifier's HTTP app.

    Args:
        app: vLLM's app.
        policy: Who may ask, and what this verifier can do.
        observer: Told of every refusal.
    """

    def __init__(
        self, app: ASGIApp, policy: FrontDoorPolicy, observer: Observer | None = None
    ) -> None:
        self.app = app
        self.policy = policy
        self.in_flight = 0
        """Requests that were let in and are not over."""
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection of any ASGI type."""
        if scope["type"] == "http":
            await self._serve(scope, Upload(receive), send)
        elif scope["type"] == "websocket":
            self._count_refusal("websocket")
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await self.app(scope, receive, send)

    async def _serve(self, scope: Scope, upload: Upload, send: Send) -> None:
        path, headers = path_below_root(scope), scope["headers"]
        for_anthropic = path.startswith("/v1/messages")
        request_class = INTERACTIVE
        try:
            route, caller = self._let_in(scope["method"], path, headers)
            if route.body is not None:
                request_class = await self._rewrite_body(upload, route.body, caller, headers)
        except ClientLeft:
            self._count_refusal("client_left")
        except RequestRefused as refused:
            reason = REFUSALS[type(refused)].reason
            self._count_refusal(reason)
            logger.info("refused id=%s reason=%s", request_id_of(headers) or "-", reason)
            more = _headers_of(refused, path, is_unread=has_body(headers) and not upload.is_whole)
            await send_error(send, of_refusal(refused), for_anthropic, more)
        else:
            inner = {
                **scope,
                "headers": forwarded(headers, upload.replacement, PRIORITIES[request_class]),
                "state": {**scope.get("state", {}), CALLER: caller},
            }
            fields = FIELDS[route.body] if route.body else ()
            more = explanation(headers) if self.policy.explains_routes else []
            await self._pass_on(inner, upload, ShapedResponse(send, fields, for_anthropic, more))

    def _let_in(self, method: str, path: str, headers: Headers) -> tuple[Route, Caller]:
        tenant = NO_TENANT if is_open(method, path) else self._authenticate(headers)
        route = find_route(method, path)
        check_headers(headers, needs_json=route.body is not None)
        return route, Caller(tenant, self.policy.domain_of(tenant))

    def _authenticate(self, headers: Headers) -> str:
        if self.policy.keys is None:
            return NO_TENANT
        tenant = self.policy.keys.tenant_of(key_of(headers))
        if tenant is None:
            raise NotAuthenticated("This API key is not known here.")
        return tenant

    async def _rewrite_body(
        self, upload: Upload, kind: BodyKind, caller: Caller, headers: Headers
    ) -> str:
        """Puts the body in the upload as the app shall have it; returns the request's class."""
        policy = self.policy
        if (declared_length(headers) or 0) > policy.max_body_bytes:
            raise too_large(policy.max_body_bytes)
        raw = await upload.read(policy.max_body_bytes, policy.body_timeout_s)
        body = checked(parse_object(raw), kind, policy)
        request_class = class_of(body)
        if kind in GENERATING:
            body["cache_salt"] = policy.salt_for(caller.domain, body["model"])
            if told := self._told_to_engine(request_class, caller):
                body["vllm_xargs"] = {**body.get("vllm_xargs", {}), **told}
        upload.replacement = encode(body)
        return request_class

    def _told_to_engine(self, request_class: str, caller: Caller) -> dict[str, str]:
        told = {DOMAIN: caller.domain} if self.policy.speculation else {}
        if request_class != INTERACTIVE:
            told[CLASS] = request_class
        return told

    async def _pass_on(self, scope: Scope, upload: Upload, response: ShapedResponse) -> None:
        self.in_flight += 1
        try:
            await self._run(scope, upload, response)
        except Exception as error:
            # Its text may hold what the client sent; its kind and place do not.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind = type(error).__name__
            logger.error("failed error=%s file=%s line=%s", kind, frame.filename, frame.lineno)
            if response.is_started:
                raise
            await response.fail(of_status(500))
        finally:
            self.in_flight -= 1

    async def _run(self, scope: Scope, upload: Upload, response: ShapedResponse) -> None:
        """The app, in a task that learns from `receive` that the client left.

        Serve cancels a request whose client left. vLLM's handlers wait for a task of their
        own, which outlives them when they are cancelled: told first, they end it.
        """
        app = asyncio.ensure_future(self.app(scope, upload.receive, response))
        try:
            await asyncio.shield(app)
        except asyncio.CancelledError:
            upload.hang_up()
            await asyncio.wait([app], timeout=0 if response.is_started else HANG_UP_S)
            raise
        finally:
            app.cancel()

    def _count_refusal(self, reason: str) -> None:
        if self._observer is not None:
            self._observer.refused(reason)


def path_below_root(scope: Scope) -> str:
    """The path that the app routes by, as Starlette sees it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _headers_of(refused: RequestRefused, path: str, is_unread: bool) -> Headers:
    headers = []
    if isinstance(refused, NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(refused, MethodNotServed):
        headers.append((b"allow", ", ".join(methods_of(path)).encode()))
    if is_unread:
        headers.append((b"connection", b"close"))
    return headers
