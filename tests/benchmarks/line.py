"""What the whole line costs: paceline against plain vLLM with the same engine settings.

    make bench-line            QUICK=1 make bench-line

Arms: paceline (HAProxy, router, front door, Ray Serve, vLLM), plain vLLM's API
server, the same server once more (A/A), and plain vLLM without speculation. On a CPU
paceline keeps a single rank inside the engine, where vLLM gives it a process of its own;
`line.py --rank-in-process` measures it as vLLM has it, for what the line alone costs.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

from harness import Bench, Comparison, Metric, console
from load import Load, run_load
from plain_vllm import PlainVllm

from cluster.local import LocalCluster
from cluster.models import resolve_source
from configs import ClusterConfig, load_config
from configs.sections.drafting import ColocatedDrafting, DraftingConfig

PACELINE, PLAIN, SAME, NONE = "paceline", "vllm", "vllm again", "vllm, no speculation"
THROUGHPUT = Metric("output throughput", "tokens/s", higher_is_better=True)
TTFT = Metric("median TTFT", "ms", higher_is_better=False)
PORT, NONE_PORT = 8117, 8118
INPUT_TOKENS, OUTPUT_TOKENS = 128, 48


def bench_config(rank_in_engine: bool) -> ClusterConfig:
    """configs/local.yaml with vLLM's ngram, without prefix caching: no arm finds another's work."""
    config = load_config(Path("configs/local.yaml"))
    verifiers = config.verifiers
    kv_cache = verifiers.kv_cache.model_copy(update={"prefix_caching": False})
    changes = {"kv_cache": kv_cache, "rank_in_engine": rank_in_engine}
    return config.model_copy(
        update={
            "name": "bench-line",
            "verifiers": verifiers.model_copy(update=changes),
            "drafting": DraftingConfig(max_length=4, colocated=ColocatedDrafting(method="ngram")),
        }
    )


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="default 5, quick 1")
    parser.add_argument("--concurrency", type=int, help="only this one, of 1, 4, 8 and 16")
    parser.add_argument("--rank-in-process", action="store_true", help="as vLLM runs a CPU rank")
    args = parser.parse_args()
    config = bench_config(rank_in_engine=not args.rank_in_process)
    no_drafts = config.drafting.model_copy(update={"colocated": None})
    plain = config.model_copy(update={"drafting": no_drafts})
    concurrencies = [1, 8] if args.quick else [1, 4, 8, 16]
    if args.concurrency:
        concurrencies = [args.concurrency]
    requests_each = 1 if args.quick else 2
    cells = {f"concurrency {n}": n for n in concurrencies}
    cluster = LocalCluster(config, __file__)
    tokenizer = resolve_source(config.model.source, config.folders.models)
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        console.print("  starting vLLM with and without speculation")
        servers = {
            PLAIN: stack.enter_context(PlainVllm(config, PORT, Path(logs) / "plain.log")),
            NONE: stack.enter_context(PlainVllm(plain, NONE_PORT, Path(logs) / "none.log")),
        }
        stack.callback(cluster.down)
        cluster.up(lambda step: console.print(f"  paceline: {step}"))
        for server in servers.values():
            server.wait()
        urls = {PACELINE: cluster.url, **{arm: server.url for arm, server in servers.items()}}
        urls[SAME] = urls[PLAIN]
        for url in set(urls.values()):
            run_load(url, config.model.name, tokenizer, Load(2, 2, INPUT_TOKENS, 8), seed=10_000)

        def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
            n = cells[cell]
            load = Load(n, max(8, requests_each * n), INPUT_TOKENS, OUTPUT_TOKENS)
            seed = 100 * n + repetition
            result = run_load(urls[arm], config.model.name, tokenizer, load, seed)
            return {
                THROUGHPUT.name: result["output_throughput"],
                TTFT.name: result["median_ttft_ms"],
            }

        bench = Bench("line", [PACELINE, PLAIN, SAME, NONE], list(cells), [THROUGHPUT, TTFT])
        bench.run(measure, args.repetitions or (1 if args.quick else 5))
        bench.finish([Comparison(PACELINE, PLAIN, SAME, THROUGHPUT, 0.97)])


if __name__ == "__main__":
    main()
