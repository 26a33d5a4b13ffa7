"""Routers over HTTP in real time: mock engines that stream, and who says where a request goes.

paceline's router asks for its tokens, follows the engines' relays and decides, in the process of
the client, which then goes straight to the engine it names, as HAProxy does; the way through
HAProxy is not in its numbers. vllm-router (github.com/vllm-project/router) is a proxy of its own.
It is taken from PATH or from `--vllm-router`, and left out where it is not.
"""

import asyncio
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
from harness import Bench, Metric, console
from http_engines import HttpSettings, prompt_of

sys.path.append("tests/support")
from tiny_models import make_tiny_llama

from kvstore.kv_messages import KvCodec
from router.prefix_routing import PrefixRouting
from router.prompt import PromptReader, PromptSettings
from router.reading import Reading
from router.routing_settings import PrefixSettings, Ready
from router.tenants import TenantSettings

FIRST_PORT, ROUTER_PORT, PROMETHEUS_PORT = 9300, 9380, 9381
ENGINES, BLOCK, CAPACITY, RATE = 8, 32, 2500, 4000.0
START_TIMEOUT_S = 60
PEERS = {
    "vllm-router cache_aware": ["--policy", "cache_aware"],
    "vllm-router kv_aware": ["--policy", "kv_aware"],
}
METRICS = [
    Metric("hit rate", "0-1", higher_is_better=True),
    Metric("mean TTFT", "ms", higher_is_better=False),
    Metric("P99 TTFT", "ms", higher_is_better=False),
    Metric("hottest", "x mean", higher_is_better=False),
]


def http(quick: bool, repetitions: int, capacity_tokens_per_s: float, binary: str | None) -> None:
    """Prints the table of all arms that can be had.

    Args:
        quick: A part of the trace, one load.
        repetitions: Seeds.
        capacity_tokens_per_s: Of all engines, prompt tokens, at the hit rate that defines a load.
        binary: vllm-router; None looks in PATH.
    """
    binary = binary or shutil.which("vllm-router")
    arms = ["paceline", *peers(binary)]
    loads = [0.7] if quick else [0.5, 0.7, 0.9]
    bench = Bench("router-http", arms, [f"mooncake {load}" for load in loads], METRICS)

    def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            settings = HttpSettings(
                folder,
                FIRST_PORT,
                ENGINES,
                BLOCK,
                CAPACITY,
                RATE,
                repetition,
                secrets.token_hex(16),
                300 if quick else 1200,
                float(cell.split()[1]) * capacity_tokens_per_s,
            )
            make_tiny_llama(Path(folder) / "model", heads=1, kv_heads=1, head_dim=8, layers=1)
            shutil.copy(Path(folder) / "model" / "tokenizer.json", folder)
            return asyncio.run(one_run(arm, settings, binary))

    bench.run(measure, repetitions)
    bench.finish([])


def peers(binary: str | None) -> list[str]:
    """The arms of vllm-router; says which are left out."""
    if binary is None:
        console.print("  vllm-router is not in PATH, its arms are skipped")
        return []
    told = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    has_kv = "kv_aware" in told.stdout + told.stderr
    if not has_kv:
        console.print("  this vllm-router has no kv_aware: that arm is skipped")
    return [arm for arm in PEERS if has_kv or "kv_aware" not in arm]


async def one_run(arm: str, settings: HttpSettings, binary: str | None) -> dict[str, float]:
    """Starts engines and a router, replays the trace, and takes the numbers."""
    urls = [f"http://127.0.0.1:{port}" for port in settings.ports(0)]
    encoded = msgspec.json.encode(settings).decode()
    engines = Path(__file__).parent / "http_engines.py"
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        _process(session, urls, sys.executable, str(engines), encoded),
        _router(arm, session, settings, urls, binary) as where,
    ):
        trace = settings.trace()
        texts = [
            prompt_of(place, arrival, settings.block_tokens) for place, arrival in enumerate(trace)
        ]
        start_s = time.monotonic() + 0.5
        asked = [
            _ask(session, where, place, texts[place], start_s + arrival.at_s)
            for place, arrival in enumerate(trace)
        ]
        ttft_s = await asyncio.gather(*asked)
        counts = [await _get(session, f"{url}/stats") for url in urls]
    prompts = [count["requests"] for count in counts]
    return {
        "hit rate": sum(c["cached"] for c in counts) / sum(c["prompt"] for c in counts),
        "mean TTFT": 1e3 * statistics.mean(ttft_s),
        "P99 TTFT": 1e3 * float(np.quantile(ttft_s, 0.99)),
        "hottest": max(prompts) / statistics.mean(prompts),
    }


Where = Callable[[dict[str, Any]], Awaitable[str]]
"""Which address a request with this body is sent to."""


async def _ask(
    session: aiohttp.ClientSession, where: Where, place: int, text: str, at_s: float
) -> float:
    """Time to first token of one request, from when it was to be sent."""
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    body = {"model": "mock", "prompt": text, "user": str(place), "stream": True, "max_tokens": 1}
    url = await where(body)
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        first = await answer.content.readany()
        ttft_s = time.monotonic() - at_s
        if not first:
            raise RuntimeError("an answer without a token")
        await answer.read()
    return ttft_s


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return await answer.json(content_type=None)


@asynccontextmanager
async def _process(
    session: aiohttp.ClientSession, urls: Sequence[str], *command: str
) -> AsyncIterator[None]:
    """A server that is up once all `urls` are healthy."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not await _are_healthy(session, urls):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {log.read()[-2000:]!r}")
                await asyncio.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(10)


async def _are_healthy(session: aiohttp.ClientSession, urls: Sequence[str]) -> bool:
    try:
        for url in urls:
            async with session.get(f"{url}/health") as answer:
                if answer.status != 200:
                    return False
    except aiohttp.ClientError:
        return False
    return True


@asynccontextmanager
async def _router(
    arm: str,
    session: aiohttp.ClientSession,
    settings: HttpSettings,
    urls: Sequence[str],
    binary: str | None,
) -> AsyncIterator[Where]:
    if arm == "paceline":
        async with _paceline(settings, urls) as where:
            yield where
        return
    assert binary is not None
    url = f"http://127.0.0.1:{ROUTER_PORT}"
    command = [
        *(binary, "--host", "127.0.0.1", "--port", str(ROUTER_PORT), *PEERS[arm]),
        *("--prometheus-port", str(PROMETHEUS_PORT), "--worker-urls", *urls),
    ]
    if "kv_aware" in arm:
        command += ["--kv-event-block-size", str(settings.block_tokens), "--kv-event-model", "mock"]
        for engine, port in zip(urls, settings.ports(2), strict=True):
            command += ["--kv-event-source", f"{engine}=tcp://127.0.0.1:{port}"]
    async with _process(session, [url], *command):

        async def where(_: dict[str, Any]) -> str:
            return url

        yield where


@asynccontextmanager
async def _paceline(settings: HttpSettings, urls: Sequence[str]) -> AsyncIterator[Where]:
    """The router as it is, told by the engines' relays."""
    model = Path(settings.folder) / "model"
    routing = PrefixRouting(PrefixSettings(str(model), "mock", settings.block_tokens, 1 << 20))
    tenants = TenantSettings("mock", {}, "mock", "auto", settings.block_tokens, salted=False)
    reader = PromptReader(PromptSettings(str(model)))
    routing.begin(Ready(reader, tenants, KvCodec(settings.token.encode())))
    verifiers = {
        url: {"kv_endpoint": f"tcp://127.0.0.1:{port}"}
        for url, port in zip(urls, settings.ports(1), strict=True)
    }

    async def where(body: dict[str, Any]) -> str:
        reading = await routing.read(body, "")
        return routing.decide(reading, verifiers, time.time()).ranking.replica_ids[0]

    try:
        routing.decide(Reading(), verifiers, time.time())  # It begins to follow.
        while any(url not in routing.index for url in urls):
            await asyncio.sleep(0.1)
        yield where
    finally:
        await routing.close()
