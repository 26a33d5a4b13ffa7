"""The front door before vLLM's own app: no path round it, and errors in one shape.

No engine runs: behind vLLM's request models stand handlers that check sampling
parameters as the engine would and answer with an empty stream.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvstore.keys import parse_keys
from replicas.verifier.front_door import FrontDoorPolicy
from replicas.verifier.routes import ROUTES

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
OPENAI_TYPES = {"invalid_request_error", "authentication_error", "not_found_error", "server_error"}

Client = Callable[..., httpx.AsyncClient]
BehindDoor = Callable[[FrontDoorPolicy], Any]


@pytest.fixture
def ask(behind_door: BehindDoor, policy: FrontDoorPolicy, client: Client) -> httpx.AsyncClient:
    return client(behind_door(policy))


def error_of(response: httpx.Response, status: int = 400) -> Any:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in OPENAI_TYPES
    for word in ("pydantic", "Traceback", "ValidationError", "'loc'", "parameter="):
        assert word not in error["message"]
    return error


async def test_every_route_of_vllms_app_is_closed_without_a_key(
    behind_door: BehindDoor, policy: FrontDoorPolicy, client: Client
) -> None:
    """Docs, metrics and aliases too, with every method a route has."""
    app = behind_door(replace(policy, keys=parse_keys("ada key-of-ada"), domain_secret=b"s"))
    closed = 0
    for route in app.routes:
        for method in {*(getattr(route, "methods", None) or ()), "OPTIONS", "GET"}:
            if (method, route.path) == ("GET", "/health"):
                continue
            response = await client(app).request(method, route.path)
            assert response.status_code == 401, (method, route.path)
            closed += 1
    assert closed > 60


async def test_what_vllm_serves_beyond_the_table_is_404(
    behind_door: BehindDoor, policy: FrontDoorPolicy, ask: httpx.AsyncClient
) -> None:
    """A new vLLM's new route is not served before somebody has looked at it."""
    served = {(route.method, route.path) for route in ROUTES}
    for route in behind_door(policy).routes:
        for method in getattr(route, "methods", None) or ("GET",):
            if (method, route.path) in served:
                continue
            response = await ask.request(method, route.path)
            status = 405 if route.path in {path for _, path in served} else 404
            if method == "HEAD":
                assert response.status_code == status
            else:
                error_of(response, status)


@pytest.mark.parametrize("path", PATHS)
async def test_the_tenants_salt_reaches_vllms_request(
    path: str, behind_door: BehindDoor, policy: FrontDoorPolicy, serving: Any, client: Client
) -> None:
    """Through vLLM's own models, the Anthropic conversion among them."""
    keyed = replace(policy, keys=parse_keys("ada key-of-ada"), domain_secret=b"s")
    asking = client(behind_door(keyed), authorization="Bearer key-of-ada")
    await asking.post(path, json={**PATHS[path], "cache_salt": "mine", "priority": -5})
    assert serving.requests[0].cache_salt == keyed.salt_for(keyed.domain_of("ada"), "m")
    assert serving.requests[0].priority == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", 2.5),
        ("top_p", 0),
        ("top_k", -2),
        ("min_p", 2),
        ("frequency_penalty", 3),
        ("presence_penalty", -3),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 4000),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", {"a": 1}),
        ("stop_token_ids", [512]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("logit_bias", {"512": 1}),
        ("bad_words", [""]),
        ("seed", 2**63),
        ("seed", "x"),
        ("logprobs", -2),
        ("prompt_logprobs", -2),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", -2),
        ("truncation_side", "up"),
        ("stream_interval", 0),
        ("thinking_token_budget", -3),
        ("use_beam_search", True),
        ("length_penalty", 2),
        ("watermarking", True),
        ("best_of", 2),
        ("suffix", 1),
        ("echo", "loud"),
        ("response_format", {"type": "yaml"}),
        ("structured_outputs", {"choice": "a"}),
        ("repetition_detection", {"max_pattern_size": -1}),
        ("prompt", [512]),
        ("prompt", None),
        ("prompt_embeds", "AA=="),
    ],
)
async def test_a_wrong_sampling_parameter_is_a_400_that_names_it(
    field: str, value: object, stream: bool, ask: httpx.AsyncClient
) -> None:
    """Streamed or not: an engine that refuses late does not make it a stream."""
    body = {**TEXT, "stream": stream, field: value}
    error = error_of(await ask.post("/v1/completions", json=body))
    if field != "repetition_detection":
        assert error["param"] == field or error["param"].startswith(f"{field}.")


@pytest.mark.parametrize(
    "field",
    [
        *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
        *("repetition_penalty", "n", "min_tokens", "seed", "ignore_eos", "logit_bias"),
        *("stop_token_ids", "allowed_token_ids", "bad_words"),
    ],
)
async def test_an_obeyed_sampling_parameter_reaches_the_engines_parameters(
    field: str, ask: httpx.AsyncClient, serving: Any
) -> None:
    """None is lost on the way through the front door and vLLM's request model."""
    values = {
        "stop_token_ids": [7],
        "allowed_token_ids": [7],
        "bad_words": ["x"],
        "logit_bias": {"7": 1.5},
        "ignore_eos": True,
    }
    value = values.get(field, 1)
    response = await ask.post("/v1/completions", json={**TEXT, "stream": True, field: value})
    assert response.status_code == 200, response.text
    params = serving.requests[0].to_sampling_params(16, {})
    expected = {7: 1.5} if field == "logit_bias" else value
    assert getattr(params, field) == expected


MALFORMED: list[Any] = [
    *([], True, None, 123, "x", {}),
    {"messages": []},
    {**CHAT, "messages": {"role": "user"}},
    {**CHAT, "messages": "hi"},
    {**CHAT, "messages": [1]},
    {**CHAT, "messages": [[]]},
    {**CHAT, "messages": [{}]},
    {**CHAT, "messages": [{"role": "user", "content": 1}]},
    {**CHAT, "messages": [{"role": "user", "content": [1]}]},
    {**CHAT, "messages": [{"role": 1, "content": "x"}]},
    {**CHAT, "messages": [{"role": "assistant", "tool_calls": 7}]},
    {**CHAT, "tools": 1},
    {**CHAT, "tools": ["f"]},
    {**CHAT, "tools": [{}], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {**CHAT, "tools": [{"type": "function", "function": {}}]},
    {**CHAT, "tool_choice": "always"},
    {**CHAT, "tool_choice": 1},
    {**CHAT, "response_format": {"type": "json_schema"}},
    {**CHAT, "response_format": {"type": "json_schema", "json_schema": "x"}},
    {**CHAT, "response_format": {"type": "structural_tag", "format": "x"}},
    {**CHAT, "response_format": {}},
    {**CHAT, "response_format": []},
    {**CHAT, "structured_outputs": {"json_object": False, "regex": 1}},
    {**CHAT, "stream_options": 1},
    {**CHAT, "stream_options": {"include_usage": True}},
    {**CHAT, "stream": "maybe"},
    {**CHAT, "logit_bias": 1},
    {**CHAT, "vllm_xargs": []},
    {**CHAT, "chat_template": "{{ x }}"},
    {**CHAT, "chat_template_kwargs": 1},
    {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
    {**CHAT, "modalities": ["audio"]},
    {**CHAT, "functions": [{"name": "f"}]},
    {**CHAT, "top_logprobs": 3},
    {**CHAT, "kv_transfer": {}},
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: json.dumps(body)[:60])
async def test_a_malformed_request_is_a_quick_400(
    body: object, ask: httpx.AsyncClient, serving: Any
) -> None:
    """In the one shape, and none reaches a handler."""
    error_of(await ask.post("/v1/chat/completions", json=body))
    assert not serving.requests


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"", "application/json"),
        (b'{"model": "m", "mess', "application/json"),
        (json.dumps(CHAT).encode("utf-16"), "application/json"),
        (b'{"model":' * 5_000, "application/json"),
        (b'{"model": "m", "user": "\\ud800"}', "application/json"),
        (json.dumps(CHAT).encode(), "text/plain"),
        (json.dumps(CHAT).encode(), "application/x-www-form-urlencoded"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_bytes_that_are_no_json_are_a_400(
    path: str, body: bytes, media_type: str, ask: httpx.AsyncClient
) -> None:
    response = await ask.post(path, content=body, headers={"content-type": media_type})
    error_of(response)


async def test_an_openai_client_raises_the_class_of_the_status(
    behind_door: BehindDoor, policy: FrontDoorPolicy
) -> None:
    """And finds message, param and code where it looks for them."""
    import httpx2
    import openai

    keyed = replace(policy, keys=parse_keys("ada key-of-ada"), domain_secret=b"s")
    transport = httpx2.ASGITransport(app=behind_door(keyed))
    async with openai.AsyncOpenAI(
        base_url="http://verifier/v1",
        api_key="key-of-ada",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as good:
        with pytest.raises(openai.BadRequestError) as bad_request:
            await good.completions.create(model="m", prompt="x", temperature=9)
        assert bad_request.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as not_found:
            await good.embeddings.create(model="m", input="x")
        assert not_found.value.code == "unknown_url"
        with pytest.raises(openai.AuthenticationError) as who:
            await good.with_options(api_key="nobody's").completions.create(model="m", prompt="x")
        assert who.value.code == "invalid_api_key"


async def test_an_anthropic_client_raises_the_class_of_the_status(
    behind_door: BehindDoor, policy: FrontDoorPolicy
) -> None:
    """With its own header for the key, and its own word for what is wrong."""
    import anthropic
    import httpx2

    keyed = replace(policy, keys=parse_keys("ada key-of-ada"), domain_secret=b"s")
    transport = httpx2.ASGITransport(app=behind_door(keyed))
    async with anthropic.AsyncAnthropic(
        base_url="http://verifier",
        api_key="key-of-ada",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as good:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await good.messages.create(model="m", messages=[], max_tokens=1, container="c")
        assert "container" in refused.value.message
        with pytest.raises(anthropic.AuthenticationError):
            await good.with_options(api_key="nobody's").messages.count_tokens(
                model="m", messages=[]
            )


async def test_a_python_error_inside_vllm_is_a_500_of_ours(
    ask: httpx.AsyncClient, serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's last handler stands outside the front door and would print it."""

    async def failing(request: Any, raw_request: Any) -> None:
        raise KeyError("a prompt")

    monkeypatch.setattr(serving, "create_completion", failing)
    error = error_of(await ask.post("/v1/completions", json=TEXT), 500)
    assert "a prompt" not in error["message"]
