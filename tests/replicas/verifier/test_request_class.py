"""The class of a request, from what a client says to the label of a metric."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import RequestOutputKind

from configs.request_class import BATCH, INTERACTIVE
from replicas.verifier import request_metrics
from replicas.verifier.front_door import FrontDoor, FrontDoorPolicy
from replicas.verifier.request_log import watched
from replicas.verifier.request_speculation import CLASS, class_told
from replicas.verifier.sharing import DOMAIN
from replicas.verifier.telemetry import VerifierTelemetry

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TIERS = [("flex", BATCH), ("batch", BATCH), ("auto", INTERACTIVE), ("priority", INTERACTIVE)]
TIERS += [(None, INTERACTIVE), ([], INTERACTIVE), ({"flex": 1}, INTERACTIVE), (7, INTERACTIVE)]

Client = Callable[..., httpx.AsyncClient]


@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize(("tier", "expected"), TIERS, ids=str)
async def test_the_class_is_what_service_tier_says(
    tier: Any,
    expected: str,
    speculation: bool,
    policy: FrontDoorPolicy,
    recorded: Any,
    client: Client,
) -> None:
    """The engine's sampling parameters carry it, with drafts and without."""
    door = FrontDoor(recorded, replace(policy, speculation=speculation))
    answer = await client(door).post("/v1/chat/completions", json={**CHAT, "service_tier": tier})
    assert answer.is_success
    params = ChatCompletionRequest(**recorded.body).to_sampling_params(16, {})
    assert class_told(params) == expected
    told = recorded.headers.get(b"x-vllm-priority")
    assert told == (b"1" if expected == BATCH else None)
    assert (DOMAIN in (params.extra_args or {})) == speculation


async def test_no_client_chooses_it_otherwise(
    policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """`vllm_xargs` is the server's, and so is the place in the queue."""
    for said in (BATCH, "mine"):
        body = {**CHAT, "vllm_xargs": {CLASS: said}, "priority": -5}
        await client(FrontDoor(recorded, policy)).post(
            "/v1/chat/completions", json=body, headers={"x-vllm-priority": "-5"}
        )
        assert "vllm_xargs" not in recorded.body
        assert "priority" not in recorded.body
        assert b"x-vllm-priority" not in recorded.headers


async def test_it_reaches_the_engine_by_every_route(
    policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """vLLM takes it in the bodies of completions and of Anthropic's messages, too."""
    ask = client(FrontDoor(recorded, policy))
    await ask.post("/v1/completions", json={"model": "m", "prompt": "a", "service_tier": "flex"})
    assert class_told(CompletionRequest(**recorded.body).to_sampling_params(16, {})) == BATCH
    await ask.post("/v1/messages", json={**CHAT, "max_tokens": 9, "service_tier": "batch"})
    assert AnthropicMessagesRequest(**recorded.body).vllm_xargs == {CLASS: BATCH}
    await ask.post("/v1/responses", json={"model": "m", "input": "a", "service_tier": "flex"})
    assert recorded.body["vllm_xargs"] == {CLASS: BATCH}


@pytest.mark.parametrize("value", [None, 7, [], "mine", INTERACTIVE])
def test_what_is_no_class_is_interactive(value: Any) -> None:
    """Never another label, and never an error."""
    assert class_told(SimpleNamespace(extra_args={CLASS: value})) == INTERACTIVE
    assert class_told(None) == INTERACTIVE


class Instrument:
    """Keeps what it is told, and refuses tags that it was not made with."""

    made: ClassVar[dict[str, list[dict[str, str]]]] = {}

    def __init__(self, name: str, tag_keys: tuple[str, ...] = (), **_: Any) -> None:
        self._tag_keys = set(tag_keys)
        self._told = self.made.setdefault(name, [])

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        assert set(tags or {}) == self._tag_keys
        self._told.append(tags or {})

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.inc(value, tags)


async def test_requests_and_latencies_are_counted_by_class(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By two classes, whatever is sent; the log line names them, too."""
    monkeypatch.setattr(Instrument, "made", {})
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(request_metrics, kind, Instrument)
    observer = VerifierTelemetry("r", "127.0.0.1", "m", "w")

    async def generate(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(
            metrics=None, prompt_token_ids=[1], num_cached_tokens=0, outputs=[], finished=True
        )

    ask = watched(generate, "r", "m", observer)
    caplog.set_level("INFO")
    for told in ({CLASS: BATCH}, None, {CLASS: "mine"}):
        params = SimpleNamespace(output_kind=RequestOutputKind.DELTA, extra_args=told)
        _ = [output async for output in ask({"prompt_token_ids": [1]}, params, "id")]
    classes = [BATCH, INTERACTIVE, INTERACTIVE]
    assert [t["class"] for t in Instrument.made["paceline_requests_total"]] == classes
    assert [t["class"] for t in Instrument.made["paceline_ttft_seconds"]] == classes
    assert [t["class"] for t in Instrument.made["paceline_request_duration_seconds"]] == classes
    logged = [row for row in caplog.messages if row.startswith("request id=")]
    assert [row.partition("class=")[2].split()[0] for row in logged] == classes
