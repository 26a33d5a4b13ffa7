"""What routing adds to the way of a request, with verifiers that answer at once.

    make bench-router-path          QUICK=1 make bench-router-path

Real are HAProxy, Ray Serve, our router's deployment and its policies; only the verifiers are
mock-ups, two for each arm. Prompts of a thousand tokens, sent by 1 or 4 connections, each sending
its next request when the last is answered:

    new     a completion of text that nobody has seen
    turn    a chat of which all but the last 30 tokens was sent before

Arms: `straight` to a verifier; `empty`, a router that reads nothing and takes the first verifier;
the same again (A/A); our two policies; and vllm-router's cache_aware before the same verifiers,
where it is in PATH or named by `--vllm-router`. Client, HAProxy, router and verifiers share the
cores of this machine.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from clusters import moved
from harness import Bench, Metric, console
from instant_verifiers import own_urls, running

from cluster.models import resolve_source
from configs import load_config

STRAIGHT, EMPTY, AGAIN = "straight", "empty router", "empty router again"
AWARE, LOADED, PEER = "prefix_aware", "least_loaded", "vllm-router cache_aware"
P50 = Metric("P50", "ms", higher_is_better=False)
P99 = Metric("P99", "ms", higher_is_better=False)
RATE = Metric("rate", "requests/s", higher_is_better=True)
PROMPT_TOKENS, TURN_TOKENS = 1000, 30
PEER_PORT, PEER_METRICS_PORT = 9390, 9391
WORDS = Path("ARCHITECTURE.md").read_text().split()


def text_of(tokens: int, rng: random.Random) -> str:
    """Words of our own documents in no order; about so many tokens of a small model's."""
    return " ".join(rng.choices(WORDS, k=int(tokens / 2.2)))


def bodies(kind: str, count: int, seed: int) -> list[dict[str, Any]]:
    """What is asked, in order."""
    rng = random.Random(seed)
    if kind == "new":
        prompts = (text_of(PROMPT_TOKENS, rng) for _ in range(count))
        return [{"model": "instant", "prompt": p, "max_tokens": 1} for p in prompts]
    system = {"role": "system", "content": text_of(PROMPT_TOKENS - TURN_TOKENS, rng)}
    turns = ({"role": "user", "content": text_of(TURN_TOKENS, rng)} for _ in range(count))
    return [{"model": "instant", "messages": [system, turn], "max_tokens": 1} for turn in turns]


async def times_of(urls: Sequence[str], kind: str, connections: int, seed: int, count: int) -> Any:
    """Seconds of each request, and of all of them."""
    path = "/v1/completions" if kind == "new" else "/v1/chat/completions"
    waiting = bodies(kind, count + connections, seed)
    taken_s: list[float] = []

    async def client(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            is_first = True  # It opens the connection, and is not counted.
            while waiting:
                body, began_s = waiting.pop(), time.perf_counter()
                async with session.post(f"{url}{path}", json=body) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"{url}: {answer.status}")
                if not is_first:
                    taken_s.append(time.perf_counter() - began_s)
                is_first = False

    started_s = time.perf_counter()
    await asyncio.gather(*(client(urls[n % len(urls)]) for n in range(connections)))
    return taken_s, time.perf_counter() - started_s


@contextlib.asynccontextmanager
async def peer(binary: str | None, urls: Sequence[str]) -> AsyncIterator[str | None]:
    """vllm-router before the verifiers; None where it is not installed."""
    if binary is None:
        console.print("  vllm-router is not in PATH, its arm is skipped")
        yield None
        return
    command = [
        *(binary, "--host", "127.0.0.1", "--port", str(PEER_PORT), "--policy", "cache_aware"),
        *("--prometheus-port", str(PEER_METRICS_PORT), "--worker-urls", *urls),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PEER_PORT}"
    try:
        await _until_it_answers(url)
        yield url
    finally:
        process.terminate()
        process.wait(20)


async def _until_it_answers(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(240):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/v1/models") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.25)
    raise RuntimeError(f"nothing answers at {url}")


async def measured(args: argparse.Namespace) -> None:
    """Starts all arms, measures and prints."""
    config = moved(load_config(Path("configs/local.yaml")), 6)
    source = resolve_source(config.model.source, config.folders.models)
    policies: dict[str, tuple[str, dict[str, Any]]] = {
        "/": ("empty_router:EmptyRouter", {}),
        "/aware": (
            "router.serve_router:PrefixAwareRouter",
            {"source": source, "model": "instant", "block_tokens": config.block_tokens},
        ),
        "/loaded": ("router.serve_router:LeastLoadedRouter", {}),
    }
    with running(config, policies) as url:
        verifiers = own_urls(config)
        async with peer(args.vllm_router or shutil.which("vllm-router"), verifiers) as other:
            arms = {
                STRAIGHT: verifiers,
                EMPTY: [url],
                AGAIN: [url],
                LOADED: [f"{url}/loaded"],
                AWARE: [f"{url}/aware"],
            }
            if other:
                arms[PEER] = [other]
            for urls in arms.values():
                for kind in ("new", "turn"):
                    await times_of(urls, kind, 1, 0, 10)
            await asyncio.sleep(10)  # The router loads its tokenizer.
            cells = {f"{kind}, {n}": (kind, n) for kind in ("new", "turn") for n in (1, 4)}
            bench = Bench("router-path", list(arms), list(cells), [P50, P99, RATE])
            count = 200 if args.quick else 500
            loop = asyncio.get_running_loop()

            def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
                places = list(arms).index(arm), list(cells).index(cell)
                seed = 100 * repetition + 10 * places[0] + places[1]
                work = times_of(arms[arm], *cells[cell], seed, count)
                taken_s, all_s = asyncio.run_coroutine_threadsafe(work, loop).result()
                return {
                    P50.name: 1e3 * float(np.quantile(taken_s, 0.5)),
                    P99.name: 1e3 * float(np.quantile(taken_s, 0.99)),
                    RATE.name: count / all_s,
                }

            await asyncio.to_thread(bench.run, measure, 1 if args.quick else 5)
            bench.finish([], notes_on(bench, list(cells)))


def notes_on(bench: Bench, cells: Sequence[str]) -> list[str]:
    """What knowing prefixes adds over a router that does nothing, in each cell."""
    notes = ["prefix_aware over the empty router, medians (targets: P50 1 ms, P99 3 ms):"]
    medians = {(row.arm, row.cell, row.metric): row.median for row in bench.rows()}
    for cell in cells:
        added = [
            medians[(arm, cell, metric.name)] - medians[(EMPTY, cell, metric.name)]
            for arm in (AWARE, AGAIN)
            for metric in (P50, P99)
        ]
        notes.append(
            f"  {cell}: P50 {added[0]:+.2f} ms, P99 {added[1]:+.2f} ms; "
            f"A/A {added[2]:+.2f} and {added[3]:+.2f} ms"
        )
    return notes


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about 2 minutes")
    parser.add_argument("--vllm-router", help="its path; default: from PATH")
    asyncio.run(measured(parser.parse_args()))


if __name__ == "__main__":
    main()
