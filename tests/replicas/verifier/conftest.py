"""A front door over an app that remembers what it got, and over vLLM's app without an engine;
a tiny model, and an engine that does not speculate.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from engine_process import CONTEXT, VOCABULARY, EngineProcess
from hypothesis import settings
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tiny_models import make_tiny_llama

from replicas.verifier.front_door import FrontDoor, FrontDoorPolicy

VOCAB_SIZE = 512

# On a busy machine an example may take as long as it takes.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def policy() -> FrontDoorPolicy:
    return FrontDoorPolicy(
        vocab_size=VOCAB_SIZE,
        weights_fingerprint="w0",
        kv_format="auto",
        max_body_bytes=64 << 10,
    )


@dataclass
class RecordingApp:
    """Answers every request with `reply`, and keeps what it got."""

    reply: list[Message] = field(
        default_factory=lambda: [
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.body", "body": b"{}"},
        ]
    )
    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["type"] != "http":
            return
        message = await receive()
        self.bodies.append(message.get("body", b""))
        for message in self.reply:
            await send(message)

    @property
    def body(self) -> Any:
        return json.loads(self.bodies[-1])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.scopes[-1]["headers"])


@pytest.fixture
def recorded() -> RecordingApp:
    return RecordingApp()


@dataclass
class Refusals:
    """An observer that keeps the reasons."""

    reasons: list[str] = field(default_factory=list)

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Makes HTTP clients of an ASGI app."""
    clients = []

    def make(app: ASGIApp, **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=app)
        made = httpx.AsyncClient(transport=transport, base_url="http://verifier", headers=headers)
        clients.append(made)
        return made

    yield make
    for made in clients:
        await made.aclose()


class FakeServing:
    """Stands where vLLM's handlers stand; goes as far as an engine would check."""

    def __init__(self, is_speculating: bool) -> None:
        self._speculative = SimpleNamespace() if is_speculating else None
        self._model = SimpleNamespace(
            max_logprobs=20, is_diffusion=False, get_vocab_size=lambda: VOCAB_SIZE
        )
        self.requests: list[Any] = []

    async def show_available_models(self) -> Any:
        return SimpleNamespace(model_dump=lambda: {"object": "list", "data": []})

    async def create_chat_completion(self, request: Any, raw_request: Any) -> Any:
        self.requests.append(request)
        max_tokens = 16 if request.max_tokens is None else request.max_tokens
        params = request.to_sampling_params(max_tokens, {})
        return self._stream(params)

    create_completion = create_chat_completion

    async def create_messages(self, request: Any, raw_request: Any) -> Any:
        from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

        chat = AnthropicServingMessages.to_chat_completion_request(request)
        return await self.create_chat_completion(chat, raw_request)

    async def create_responses(self, request: Any, raw_request: Any) -> Any:
        from vllm.entrypoints.serve import create_error_response

        self.requests.append(request)
        return create_error_response(NotImplementedError("no engine here"))

    async def _stream(self, params: Any) -> AsyncIterator[str]:
        from vllm.entrypoints.serve import create_error_response

        try:
            params.verify(self._model, self._speculative, None, None)
        except Exception as error:
            yield f"data: {json.dumps(create_error_response(error).model_dump())}\n\n"
        else:
            yield 'data: {"choices": []}\n\n'
        yield "data: [DONE]\n\n"


@pytest.fixture(scope="session")
def bare_vllm_app() -> Any:
    """vLLM's own OpenAI app, built as Ray Serve LLM builds it, with no engine behind."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "nobody"])
    return build_app(args, supported_tasks=("generate",))


@pytest.fixture
def serving(bare_vllm_app: Any) -> FakeServing:
    """The handlers behind vLLM's app; what reached them stands in `requests`."""
    fake = FakeServing(is_speculating=False)
    for name in (
        "openai_serving_chat",
        "openai_serving_completion",
        "openai_serving_responses",
        "anthropic_serving_messages",
        "openai_serving_models",
    ):
        setattr(bare_vllm_app.state, name, fake)
    return fake


@pytest.fixture
def behind_door(bare_vllm_app: Any, serving: FakeServing) -> Callable[[FrontDoorPolicy], Any]:
    """vLLM's app with a front door of a policy, put there as the verifier does."""

    def make(policy: FrontDoorPolicy) -> Any:
        bare_vllm_app.user_middleware = [
            layer for layer in bare_vllm_app.user_middleware if layer.cls is not FrontDoor
        ]
        bare_vllm_app.middleware_stack = None
        bare_vllm_app.add_middleware(FrontDoor, policy=policy)
        return bare_vllm_app

    return make


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def plain(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The tiny model without speculation: it says what is right."""
    log = tmp_path_factory.mktemp("plain") / "log"
    with EngineProcess(tiny, log, max_model_len=CONTEXT) as process:
        yield process
