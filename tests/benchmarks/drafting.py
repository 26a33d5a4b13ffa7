"""What split drafting is worth against drafting in the process, on text that repeats itself.

    make bench-drafting        QUICK=1 make bench-drafting

Arms, each a whole line of its own with the same verifier, all running at once: no
speculation, vLLM's ngram in the engine, each of them once more (A/A), and split prompt lookup
by a draft worker, with the verifier's own lookup switched off. Prompts are texts that have
been copied and go on being copied; one request at a time; the same draft length.
"""

import argparse
from pathlib import Path

from clusters import moved, running
from harness import Bench, Comparison, Metric, console
from load import Load, run_load

from cluster.local import LocalCluster
from cluster.models import resolve_source
from configs import ClusterConfig, load_config
from configs.sections.drafting import (
    ColocatedDrafting,
    DraftingConfig,
    DraftWorkerConfig,
    GovernorConfig,
    SplitDrafting,
)
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live
from kvstore.verifier_report import VerifierReport

NONE, NGRAM, SPLIT = "no speculation", "vllm ngram", "split"
AGAIN = {NONE: "no speculation again", NGRAM: "vllm ngram again"}
DECODE = Metric("output throughput", "tokens/s", higher_is_better=True)
CELL = "copies, batch 1"
MAX_LENGTH, OUTPUT_TOKENS = 4, 96
TEXTS = (
    "def area(shape):\n    if shape.kind == 'circle':\n        return 3.14 * shape.radius ** 2\n"
    "    if shape.kind == 'square':\n        return shape.side ** 2\n    raise ValueError(shape)\n"
    "\n",
    "The river Aare is 288 km long. The river Reuss is 164 km long. The river Limmat is 35 km "
    "long. The river Rhine is 1,233 km long.\n",
    '{"id": 17, "item": "saddle", "count": 2}\n{"id": 18, "item": "pedal", "count": 4}\n'
    '{"id": 19, "item": "chain", "count": 1}\n',
    "date,rider,km,minutes\n2026-03-01,Ana,42,95\n2026-03-02,Ben,38,90\n2026-03-03,Cleo,51,118\n"
    "2026-03-04,Dan,47,103\n",
)
PROMPTS = tuple(text * 3 for text in TEXTS)
"""Three copies each: the model goes on with a fourth."""


def arms() -> dict[str, ClusterConfig]:
    """The configs to start, by arm; an A/A arm is its arm's line once more."""
    base = load_config(Path("configs/local.yaml"))
    kv_cache = base.verifiers.kv_cache.model_copy(update={"prefix_caching": False})
    verifiers = base.verifiers.model_copy(update={"kv_cache": kv_cache})
    drafting = {
        NONE: DraftingConfig(),
        NGRAM: DraftingConfig(max_length=MAX_LENGTH, colocated=ColocatedDrafting(method="ngram")),
        SPLIT: DraftingConfig(
            max_length=MAX_LENGTH,
            governor=GovernorConfig(mode="fixed"),
            split=SplitDrafting(workers=DraftWorkerConfig(cpus=0), local_lookup=False),
        ),
    }
    return {
        arm: moved(
            base.model_copy(update={"verifiers": verifiers, "drafting": its_drafting}), place
        )
        for place, (arm, its_drafting) in enumerate(drafting.items())
    }


def drafts_of(cluster: LocalCluster) -> VerifierReport:
    """What the cluster's only verifier says of itself."""
    listing = read_live(redis_settings(cluster.config), cluster.config.name, "verifier")
    report = listing.reports[0]
    assert isinstance(report, VerifierReport)
    return report


def notes_on(report: VerifierReport) -> list[str]:
    """Where the split arm's accepted tokens came from, and what its waiting cost."""
    accepted = {name: sum(counts.accepted) for name, counts in report.draft_sources.items()}
    total = sum(accepted.values())
    by_worker = sum(count for name, count in accepted.items() if name.startswith("worker:"))
    parts = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in report.step_s.items())
    return [
        f"accepted from the worker: {by_worker} of {total} tokens "
        f"({by_worker / total if total else 0:.1%}; target 99 %)",
        f"deadline misses: {report.deadline_misses} in {report.steps} steps; waited "
        f"{report.draft_wait_s:.2f} s in all",
        f"where the steps' time went: {parts}",
    ]


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="default 7, quick 2")
    args = parser.parse_args()
    configs = arms()
    console.print("  starting three lines side by side")
    with running(configs) as clusters:
        model = configs[NONE].model
        tokenizer = resolve_source(model.source, configs[NONE].folders.models)
        by_arm = {**clusters, **{again: clusters[arm] for arm, again in AGAIN.items()}}
        load = Load(1, len(PROMPTS), 0, OUTPUT_TOKENS, PROMPTS)

        def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
            result = run_load(by_arm[arm].url, model.name, tokenizer, load, repetition)
            return {DECODE.name: result["output_throughput"]}

        for arm in clusters:
            measure(arm, CELL, 0)
        bench = Bench("drafting", [NONE, NGRAM, SPLIT, *AGAIN.values()], [CELL], [DECODE])
        bench.run(measure, args.repetitions or (2 if args.quick else 7))
        bench.finish(
            [
                Comparison(SPLIT, NGRAM, AGAIN[NGRAM], DECODE, 0.95),
                Comparison(SPLIT, NONE, AGAIN[NONE], DECODE, 2.5),
            ],
            notes_on(drafts_of(clusters[SPLIT])),
        )


if __name__ == "__main__":
    main()
