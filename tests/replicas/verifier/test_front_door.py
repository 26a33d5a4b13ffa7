"""The order of things at the front door, over an app that only remembers."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send
from vllm.entrypoints.serve.utils.api_utils import with_cancellation

from kvstore.keys import parse_keys
from replicas.verifier.front_door import CALLER, Caller, FrontDoor, FrontDoorPolicy, path_below_root
from replicas.verifier.routes import ROUTES

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ADA, BOB = "key-of-ada", "key-of-bob"

Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
def keyed(policy: FrontDoorPolicy) -> FrontDoorPolicy:
    return replace(policy, keys=parse_keys(f"ada {ADA}\nbob {BOB}"), domain_secret=b"s")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def error_of(response: httpx.Response) -> Any:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


JSON_HEADERS = [(b"content-type", b"application/json")]


async def never() -> Message:
    raise AssertionError("nobody receives here")


async def chat() -> Message:
    return {"type": "http.request", "body": json.dumps(CHAT).encode()}


async def exchange(
    app: FrontDoor,
    receive: Receive,
    headers: list[tuple[bytes, bytes]],
    method: str = "POST",
    path: str = "/v1/chat/completions",
) -> list[Message]:
    """What the app sends for a request of these headers and messages."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "path",
    [
        *(route.path for route in ROUTES if route.needs_key),
        *("/docs", "/openapi.json", "/metrics", "/ping", "/nothing", "/", "//v1/models"),
        *("/health/", "/health/../v1/models", "/HEALTH", "/v1/models/", "*", ""),
    ],
)
async def test_without_a_key_everything_is_closed(
    method: str, path: str, keyed: FrontDoorPolicy, recorded: Any, refusals: Any
) -> None:
    """Known paths and unknown ones alike: a 401 tells nobody what is there."""
    door = FrontDoor(recorded, keyed, refusals)
    head, body = await exchange(door, never, [], method, path)
    assert head["status"] == 401
    assert (b"www-authenticate", b"Bearer") in head["headers"]
    assert json.loads(body["body"])["error"]["type"] == "authentication_error"
    assert refusals.reasons == ["not_authenticated"]
    assert not recorded.scopes


async def test_health_asks_for_no_key(
    keyed: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    assert (await client(FrontDoor(recorded, keyed)).get("/health")).status_code == 200


@pytest.mark.parametrize("headers", [bearer(ADA), {"x-api-key": ADA}])
async def test_a_key_opens_the_door_and_stays_there(
    headers: dict[str, str], keyed: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """vLLM sees the tenant in the scope and no key at all."""
    door = FrontDoor(recorded, keyed)
    response = await client(door).get("/v1/models", headers=headers)
    assert response.status_code == 200
    assert recorded.scopes[0]["state"][CALLER] == Caller("ada", keyed.domain_of("ada"))
    assert ADA not in str(recorded.scopes[0])


@pytest.mark.parametrize("key", ["", "nobody", ADA.upper(), f"{ADA} ", f"{ADA}x", "a" * 10_000])
async def test_a_wrong_key_is_refused_and_not_repeated(
    key: str,
    keyed: FrontDoorPolicy,
    recorded: Any,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In neither the answer nor the log."""
    with caplog.at_level(logging.DEBUG):
        response = await client(FrontDoor(recorded, keyed)).get(
            "/v1/models", headers={"x-api-key": key}
        )
    assert response.status_code == 401
    if key.strip():
        assert key not in response.text and key not in caplog.text


@pytest.mark.parametrize("key", [None, ADA])
async def test_a_websocket_is_closed_before_it_is_accepted(
    key: str | None, keyed: FrontDoorPolicy, recorded: Any
) -> None:
    """There is nothing behind it to talk to."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": headers}
    await FrontDoor(recorded, keyed)(scope, never, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert not recorded.scopes


async def test_the_lifespan_passes_through(policy: FrontDoorPolicy, recorded: Any) -> None:
    await FrontDoor(recorded, policy)({"type": "lifespan"}, never, never)  # type: ignore[arg-type]
    assert recorded.scopes == [{"type": "lifespan"}]


async def test_the_salt_is_the_tenants_whatever_a_client_sends(
    keyed: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """The victim's salt in the body changes nothing."""
    salts: dict[str, set[str]] = {ADA: set(), BOB: set()}
    for key in (ADA, BOB):
        for sent in ({}, {"cache_salt": "x"}, {"cache_salt": None}, {"cache_salt": "stolen"}):
            ask = client(FrontDoor(recorded, keyed), **bearer(key))
            assert (await ask.post("/v1/chat/completions", json={**CHAT, **sent})).is_success
            salts[key].add(recorded.body["cache_salt"])
    assert len(salts[ADA]) == len(salts[BOB]) == 1
    assert salts[ADA] != salts[BOB]


@pytest.mark.parametrize(
    "change", [{"weights_fingerprint": "w1"}, {"kv_format": "fp8"}, {"domain_secret": b"t"}]
)
async def test_the_salt_tells_apart_whatever_makes_other_blocks(
    change: Any, policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    salts = []
    for asked in (policy, replace(policy, **change)):
        await client(FrontDoor(recorded, asked)).post("/v1/chat/completions", json=CHAT)
        salts.append(recorded.body["cache_salt"])
    await client(FrontDoor(recorded, policy)).post(
        "/v1/chat/completions", json={**CHAT, "model": "adapter"}
    )
    assert len({*salts, recorded.body["cache_salt"]}) == 3


@pytest.mark.parametrize("explains", [True, False])
async def test_the_routers_reasons_reach_the_client_only_where_that_is_wanted(
    explains: bool, policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """They never reach vLLM."""
    reason = "v1, 0.1 s: queue 0.0"
    told = {"x-serve-router-paceline-route": reason}
    door = FrontDoor(recorded, replace(policy, explains_routes=explains))
    response = await client(door, **told).post("/v1/chat/completions", json=CHAT)
    assert response.headers.get("x-paceline-route") == (reason if explains else None)
    assert not told.keys() & {name.decode() for name in recorded.headers}


@pytest.mark.parametrize(
    "path", [route.path for route in ROUTES if route.body in ("chat", "messages")]
)
async def test_engine_headers_and_fields_do_not_pass(
    path: str, policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    ours = {
        "x-vllm-priority": "-9",
        "x-data-parallel-rank": "1",
        "x-serve-router-kv-token-key": "k",
        "traceparent": "00-1-2-00",
    }
    body = {**CHAT, "max_tokens": 1, "priority": -9, "kv_transfer_params": {"do_remote_prefill": 1}}
    response = await client(FrontDoor(recorded, policy), **ours).post(path, json=body)
    assert response.is_success
    assert set(recorded.body) == {*CHAT, "max_tokens", "cache_salt"}
    assert ours.keys() & {name.decode() for name in recorded.headers} == {"traceparent"}
    assert int(recorded.headers[b"content-length"]) == len(recorded.bodies[0])


async def test_a_body_that_says_it_is_too_large_is_not_read(
    policy: FrontDoorPolicy, recorded: Any, refusals: Any
) -> None:
    """413 at once, and the connection is closed with the upload still on it."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(policy.max_body_bytes + 1).encode()),
    ]
    sent = await exchange(FrontDoor(recorded, policy, refusals), never, headers)
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert refusals.reasons == ["body_too_large"]


async def test_chunks_without_end_are_cut_at_the_bound(
    policy: FrontDoorPolicy, recorded: Any
) -> None:
    received = 0

    async def receive() -> Message:
        nonlocal received
        received += 1 << 10
        return {"type": "http.request", "body": b" " * (1 << 10), "more_body": True}

    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    sent = await exchange(FrontDoor(recorded, policy), receive, headers)
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert received == policy.max_body_bytes + (1 << 10)


async def test_a_body_that_was_read_leaves_the_connection_open(
    policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    response = await client(FrontDoor(recorded, policy)).post("/v1/chat/completions", json=[])
    assert response.status_code == 400
    assert "connection" not in response.headers


@pytest.mark.parametrize("status", [200, 201, 302])
async def test_what_succeeds_passes_message_by_message(
    status: int, policy: FrontDoorPolicy, recorded: Any
) -> None:
    """Nothing is held back or joined."""
    recorded.reply = [
        {"type": "http.response.start", "status": status, "headers": []},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b"},
    ]
    assert await exchange(FrontDoor(recorded, policy), chat, JSON_HEADERS) == recorded.reply


def stream(*events: bytes) -> list[Message]:
    head = [(b"content-type", b"text/event-stream; charset=utf-8")]
    return [
        {"type": "http.response.start", "status": 200, "headers": head},
        *({"type": "http.response.body", "body": event, "more_body": True} for event in events),
        {"type": "http.response.body", "body": b""},
    ]


async def test_a_stream_passes_event_by_event(policy: FrontDoorPolicy, recorded: Any) -> None:
    """An error after the first event stays where vLLM put it."""
    recorded.reply = stream(b'data: {"id": 1}\n\n', b'data: {"error": {"code": 500}}\n\n')
    assert await exchange(FrontDoor(recorded, policy), chat, JSON_HEADERS) == recorded.reply


async def test_a_stream_that_starts_with_an_error_is_no_stream(
    policy: FrontDoorPolicy, recorded: Any
) -> None:
    """The client sees a status, and nothing of what vLLM says after it."""
    recorded.reply = stream(
        b'data: {"error": {"message": "n must be 1", "code": 400}}\n\n', b"data: [DONE]\n\n"
    )
    head, body = await exchange(FrontDoor(recorded, policy), chat, JSON_HEADERS)
    assert head["status"] == 400
    assert (b"content-type", b"application/json") in head["headers"]
    assert json.loads(body["body"])["error"]["param"] == "n"


async def test_a_failed_response_keeps_its_other_headers(
    policy: FrontDoorPolicy, recorded: Any
) -> None:
    """Retry-After above all."""
    recorded.reply = [
        {
            "type": "http.response.start",
            "status": 503,
            "headers": [(b"retry-after", b"3"), (b"content-length", b"4")],
        },
        {"type": "http.response.body", "body": b"bu", "more_body": True},
        {"type": "http.response.body", "body": b"sy"},
    ]
    head, body = await exchange(FrontDoor(recorded, policy), chat, JSON_HEADERS)
    assert (b"retry-after", b"3") in head["headers"]
    assert dict(head["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert json.loads(body["body"])["error"]["message"] == "busy"


async def test_an_exception_is_a_500_that_says_nothing_of_itself(
    policy: FrontDoorPolicy, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("a prompt")

    door = FrontDoor(failing, policy)
    response = await client(door).post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "KeyError" in caplog.text
    assert "a prompt" not in response.text + caplog.text
    assert door.in_flight == 0


async def test_an_exception_in_the_middle_of_an_answer_breaks_the_connection(
    policy: FrontDoorPolicy,
) -> None:
    """Swallowed, it would make a cut answer look whole."""

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("a prompt")

    door = FrontDoor(failing, policy)
    with pytest.raises(KeyError):
        await exchange(door, chat, JSON_HEADERS)
    assert door.in_flight == 0


async def test_a_client_that_leaves_cancels_its_way_down(policy: FrontDoorPolicy) -> None:
    """The app hears of it, and the request counts no longer."""
    messages = [await chat(), {"type": "http.disconnect"}]
    heard: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(await receive())
        heard.append(await receive())
        assert door.in_flight == 1

    door = FrontDoor(listening, policy)
    await exchange(door, receive, JSON_HEADERS)
    assert [message["type"] for message in heard] == ["http.request", "http.disconnect"]
    assert door.in_flight == 0


async def cancel_while_in_flight(door: FrontDoor, receive: Receive) -> None:
    task = asyncio.create_task(exchange(door, receive, JSON_HEADERS))
    while not door.in_flight:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.in_flight == 0


async def test_a_request_that_is_cancelled_counts_no_longer(
    policy: FrontDoorPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.verifier.front_door.HANG_UP_S", 0.01)

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(3600)

    await cancel_while_in_flight(FrontDoor(waiting, policy), chat)


async def test_a_cancelled_request_leaves_no_work_behind(policy: FrontDoorPolicy) -> None:
    """vLLM's handlers work in a task that only its own look at `receive` ends."""
    ended = asyncio.Event()
    messages = [await chat()]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    async def generate() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    @with_cancellation
    async def handler(_: object, request: Request) -> None:
        await generate()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope | {"app": SimpleNamespace(state=object())}, receive)
        await request.body()
        await handler(None, request)

    await cancel_while_in_flight(FrontDoor(app, policy), receive)
    await asyncio.wait_for(ended.wait(), 1)


async def test_a_client_that_leaves_while_sending_gets_nothing(
    policy: FrontDoorPolicy, recorded: Any, refusals: Any
) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    door = FrontDoor(recorded, policy, refusals)
    assert await exchange(door, receive, JSON_HEADERS) == []
    assert refusals.reasons == ["client_left"]
    assert not recorded.scopes


@pytest.mark.parametrize(
    ("root", "path", "below"),
    [
        ("", "/health", "/health"),
        ("/llm", "/llm/health", "/health"),
        ("/llm", "/llmhealth", "/llmhealth"),
        ("/health", "/health/v1/models", "/v1/models"),
    ],
)
def test_a_root_path_is_not_part_of_the_route(root: str, path: str, below: str) -> None:
    assert path_below_root({"path": path, "root_path": root}) == below


async def test_anthropics_clients_get_their_dialect(
    keyed: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    response = await client(FrontDoor(recorded, keyed)).post("/v1/messages", json=CHAT)
    assert response.json()["type"] == "error"
    assert error_of(response)["type"] == "authentication_error"
