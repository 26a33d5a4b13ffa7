"""Part (d) of the router's benchmark: real conversations over two verifiers of this machine.

Two clusters that differ in the router's policy, and Ray Serve LLM with its own prefix router, run
side by side and are asked in turns; those that are not asked are idle. `least_loaded` takes turns
while nobody is busy, as round robin.
"""

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from clusters import moved, running
from harness import Bench, Comparison, Metric, console
from ray_llm import running_ray_llm

from configs import ClusterConfig, load_config
from configs.sections.drafting import DraftingConfig

AWARE, LOADED, AGAIN = "prefix_aware", "least_loaded", "least_loaded again"
RAY = "Ray's PrefixCacheAffinityRouter"
TTFT = Metric("median TTFT", "ms", higher_is_better=False)
P99 = Metric("P99 TTFT", "ms", higher_is_better=False)
CACHED = Metric("cached", "0-1", higher_is_better=True)
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 450, 30, 8
WORDS = "route warm block prefix engine token draft verify queue cache shard tenant".split()  # noqa: SIM905


def bench_config(policy: str, place: int) -> ClusterConfig:
    """configs/two_verifiers.yaml without drafts, under a policy."""
    config = load_config(Path("configs/two_verifiers.yaml"))
    router = config.router.model_copy(update={"policy": policy})
    return moved(config.model_copy(update={"router": router, "drafting": DraftingConfig()}), place)


def real(quick: bool) -> None:
    """Starts both, asks both, prints the table."""
    configs = {AWARE: bench_config(AWARE, 0), LOADED: bench_config(LOADED, 1)}
    theirs = bench_config(LOADED, 2)
    with running(configs) as clusters, running_ray_llm(theirs) as ray_url:
        urls = {name: cluster.url for name, cluster in clusters.items()}
        urls |= {AGAIN: urls[LOADED], RAY: ray_url}
        model = configs[AWARE].model.name
        for url in urls.values():  # The router loads its tokenizer.
            talks(url, model, seed=-1, count=2, turns=1)
        time.sleep(8)

        def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
            seed = 100 * repetition + list(urls).index(arm)
            return talks(urls[arm], model, seed, count=4 if quick else 8, turns=3 if quick else 5)

        bench = Bench("router-real", list(urls), ["conversations"], [TTFT, P99, CACHED])
        bench.run(measure, 1 if quick else 5)
        bench.finish(
            [
                Comparison(AWARE, base, AGAIN, TTFT, target, aa_base=LOADED)
                for base, target in ((LOADED, 0.8), (RAY, 1.0))
            ]
        )


def talks(url: str, model: str, seed: int, count: int, turns: int) -> dict[str, float]:
    """Conversations at once over two system prompts, each turn after the one before."""
    rng = random.Random(seed)
    systems = [" ".join(rng.choices(WORDS, k=SYSTEM_WORDS)) for _ in range(2)]
    starts = [(systems[number % 2], rng.randrange(1 << 30)) for number in range(count)]
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = pool.map(lambda start: talk(client, model, start[0], start[1], turns), starts)
        answers = [answer for talk_answers in asked for answer in talk_answers]
    times = sorted(1e3 * ttft_s for ttft_s, _, _ in answers)
    return {
        TTFT.name: statistics.median(times),
        P99.name: times[int(0.99 * (len(times) - 1))],
        CACHED.name: sum(cached for _, cached, _ in answers) / sum(n for _, _, n in answers),
    }


def talk(
    client: openai.OpenAI, model: str, system: str, seed: int, turns: int
) -> list[tuple[float, int, int]]:
    """(time to first token, cached tokens, prompt tokens) of each turn."""
    rng = random.Random(seed)
    messages: list[Any] = [{"role": "system", "content": system}]
    told = []
    for _ in range(turns):
        question = " ".join(rng.choices(WORDS, k=QUESTION_WORDS))
        messages.append({"role": "user", "content": question})
        started_s, ttft_s, text, usage = time.perf_counter(), 0.0, "", None
        stream = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                ttft_s = ttft_s or time.perf_counter() - started_s
                text += chunk.choices[0].delta.content
            usage = chunk.usage or usage
        assert usage is not None
        details = usage.prompt_tokens_details
        told.append((ttft_s, (details and details.cached_tokens) or 0, usage.prompt_tokens))
        messages.append({"role": "assistant", "content": text})
    return told


if __name__ == "__main__":
    console.print("run routing.py --parts d")
