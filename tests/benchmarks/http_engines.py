"""The mock engines in real time: an HTTP server each, KV events as vLLM sends them, our relay.

    python tests/benchmarks/http_engines.py SETTINGS     one JSON object, as `HttpSettings`

A request names its place in the trace in `user`; how long it takes follows from that. Prompts are
text of a token a byte, so that whoever tokenizes them sees the trace's blocks.
"""

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import uvicorn
import zmq
import zmq.asyncio
from mock_engines import MockEngine, Request, Speed
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer
from traces import Arrival, at_load, mooncake

from kvstore.hashing import Naming
from kvstore.kv_messages import KvCodec
from replicas.verifier.engine_events import END_OF_REPLAY, EngineSource
from replicas.verifier.kv_relay import KvRelay, RelaySettings

TOPIC = "kv"
FIRST, LAST = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: [DONE]\n\n"
_encoder = msgspec.msgpack.Encoder()


class HttpSettings(msgspec.Struct, frozen=True):
    """Of all engines of one measurement.

    Attributes:
        folder: With `tokenizer.json`; sockets are made in it.
        first_port: Of as many as there are engines, and as many for their relays, and for events.
        token: Of the relays.
        requests: Of the trace, the first.
        tokens_per_s: Offered load.
    """

    folder: str
    first_port: int
    count: int
    block_tokens: int
    capacity: int
    rate: float
    seed: int
    token: str
    requests: int
    tokens_per_s: float

    def ports(self, kind: int) -> list[int]:
        """HTTP (0), relays (1), KV events (2)."""
        first = self.first_port + kind * self.count
        return list(range(first, first + self.count))

    def trace(self) -> list[Arrival]:
        """What is asked."""
        trace = mooncake(self.block_tokens)[: self.requests]
        return at_load(trace, self.tokens_per_s, self.seed)


def prompt_of(place: int, arrival: Arrival, block_tokens: int) -> str:
    """A prompt's text: a block's is the same wherever it stands, the rest is its own."""
    blocks = "".join(text_of(block, block_tokens) for block in arrival.chain)
    rest = hashlib.blake2b(place.to_bytes(8, "little")).hexdigest()
    return blocks + rest[: arrival.prompt_tokens - len(blocks)]


def text_of(block: int, block_tokens: int) -> str:
    """A block's text, a character a token."""
    digest = hashlib.blake2b(block.to_bytes(8, "little"), digest_size=block_tokens // 2)
    return digest.hexdigest()


class LiveEngine:
    """A mock engine on the real clock, that tells of its blocks as vLLM does."""

    def __init__(
        self, engine: MockEngine, tokenizer: Tokenizer, socket: zmq.asyncio.Socket
    ) -> None:
        self.engine = engine
        self._tokenizer, self._socket = tokenizer, socket
        self._sent, self._wake = 0, asyncio.Event()
        self._parents: dict[int, int | None] = {}
        self._waits: dict[int, tuple[asyncio.Event, asyncio.Event]] = {}

    async def generate(self, arrival: Arrival) -> AsyncIterator[bytes]:
        """The stream of an answer: something at its first token, and its end."""
        self._parents.update(zip(arrival.chain, (None, *arrival.chain), strict=False))
        request = self.engine.add(arrival, time.monotonic())
        first, end = self._waits[id(request)] = (asyncio.Event(), asyncio.Event())
        self._wake.set()
        await first.wait()
        yield FIRST
        await end.wait()
        yield LAST

    async def run(self) -> None:
        """Steps, for ever."""
        at_s = time.monotonic()
        while True:
            if not self.engine.has_work:
                self._wake.clear()
                await self._wake.wait()
                at_s = time.monotonic()
            # Steps follow one another as planned, however late this loop is waked.
            at_s += self.engine.begin_step()
            await asyncio.sleep(at_s - time.monotonic())
            first, done = self.engine.end_step(time.monotonic())
            await self._tell()
            self._release(first, done)

    def _release(self, first: list[Request], done: list[Request]) -> None:
        for request in first:
            self._waits[id(request)][0].set()
        for request in done:
            self._waits.pop(id(request))[1].set()

    async def _tell(self) -> None:
        added, removed = self.engine.take_changes()
        if not added and not removed:
            return
        # Numbers of blocks grow along every chain, so parents come first.
        events = [self._stored(block) for block in sorted(added)]
        if removed:
            events.append({"type": "BlockRemoved", "block_hashes": list(removed), "medium": "GPU"})
        payload = _encoder.encode([time.time(), events, None])
        await self._socket.send_multipart([TOPIC.encode(), self._sent.to_bytes(8, "big"), payload])
        self._sent += 1

    def tokens_of(self, text: str) -> list[int]:
        """As the engine's tokenizer sees a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _stored(self, block: int) -> dict[str, object]:
        text = text_of(block, self.engine.block_tokens)
        return {
            "type": "BlockStored",
            "block_hashes": [block],
            "parent_block_hash": self._parents[block],
            "token_ids": self.tokens_of(text),
            "block_size": self.engine.block_tokens,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }


def app_of(live: LiveEngine, trace: list[Arrival]) -> Starlette:
    """What is asked of an engine over HTTP."""

    async def completions(request: HttpRequest) -> Response:
        body = msgspec.json.decode(await request.body())
        answer = live.generate(trace[int(body["user"])])
        return StreamingResponse(answer, media_type="text/event-stream")

    async def tokenize(request: HttpRequest) -> Response:
        body = msgspec.json.decode(await request.body())
        tokens = live.tokens_of(body["prompt"])
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": 1 << 20})

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "mock", "object": "model"}]})

    async def stats(_: HttpRequest) -> Response:
        engine = live.engine
        told = {"prompt": engine.prompt_tokens, "cached": engine.cached_tokens}
        return JSONResponse(told | {"requests": engine.requests})

    async def health(_: HttpRequest) -> Response:
        return Response()

    @asynccontextmanager
    async def stepping(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(live.run())
        yield
        task.cancel()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/models", models),
        Route("/stats", stats),
        Route("/health", health),
    ]
    return Starlette(routes=routes, lifespan=stepping)


async def serve(settings: HttpSettings) -> None:
    """All engines, until the process is ended."""
    rng = random.Random(settings.seed)
    trace = settings.trace()
    tokenizer = Tokenizer.from_file(str(Path(settings.folder) / "tokenizer.json"))
    context = zmq.asyncio.Context()
    with ExitStack() as relays:
        servers = []
        for place in range(settings.count):
            speed = Speed(settings.rate * rng.uniform(0.85, 1.15))
            engine = MockEngine(f"v{place}", speed, settings.capacity, settings.block_tokens)
            source = EngineSource(
                f"tcp://127.0.0.1:{settings.ports(2)[place]}",
                f"ipc://{settings.folder}/replay-{place}",
                TOPIC,
            )
            events, replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
            events.bind(source.events)
            replays.bind(source.replay)
            servers.append(_replay_nothing(replays))
            live = LiveEngine(engine, tokenizer, events)
            port = settings.ports(1)[place]
            relays.enter_context(
                KvRelay(
                    source,
                    RelaySettings("127.0.0.1", "127.0.0.1", port, port),
                    Naming("mock", settings.block_tokens),
                    KvCodec(settings.token.encode()),
                    lambda engine=engine: engine.load_report(time.time()),  # type: ignore[misc]
                )
            )
            config = uvicorn.Config(
                app_of(live, trace), port=settings.ports(0)[place], log_level="warning"
            )
            servers.append(uvicorn.Server(config).serve())
        await asyncio.gather(*servers)


async def _replay_nothing(replays: zmq.asyncio.Socket) -> None:
    """The relays are there from the beginning, so that nothing is missing."""
    while True:
        frames = await replays.recv_multipart()
        end = END_OF_REPLAY.to_bytes(8, "big", signed=True)
        await replays.send_multipart([frames[0], b"", end, b""])


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=HttpSettings)))
