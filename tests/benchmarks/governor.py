"""Whether the governor is never slower than the best fixed choice, at any load.

    make bench-governor        QUICK=1 make bench-governor

Engines of their own: no speculation, once more (A/A), and vLLM's ngram at its defaults. The
other arms are requests to one line with split drafting, told apart by what they say in
`vllm_xargs`: no drafts, fixed lengths, and `auto`, the governor. Drafts that are always wrong
come from a second split line, whose only draft worker makes them up. Prompts are in the prefix
cache of every line before anything is measured: decoding is what the governor decides about.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    SplitDrafting,
)
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live

sys.path.append("tests/support")
from prompts import CODE, FACTS, PROMPTS

NONE, AGAIN, NGRAM = "no speculation", "no speculation again", "vllm ngram 4"
ZERO, FIXED_4, FIXED_8, GOVERNOR = "zero drafts", "fixed 4", "fixed 8", "governor"
WISHES: Mapping[str, str | int] = {ZERO: "off", FIXED_4: 4, FIXED_8: 8, GOVERNOR: "auto"}
SPLIT, WRONG_SPLIT = "split", "split, drafts wrong"
THROUGHPUT = Metric("output throughput", "tokens/s", higher_is_better=True)
P99_ITL = Metric("P99 inter-token latency", "ms", higher_is_better=False)
LINES = (NONE, NGRAM, GOVERNOR)
"""An arm of each line; no other has prompts to learn."""
LONGEST = 8
WORST_RATIO, HALF_GAIN, WORST_P99 = 0.97, 1.05, 1.1

COPIES = (f"Repeat this code exactly, twice:\n{CODE}", f"Copy this word for word: {FACTS * 2}")
CHAT = tuple(prompt for prompt in PROMPTS if len(prompt) < 120)[:8]
LONG = tuple(f"{FACTS * 160}Part {i}: which of these rivers is the longest?" for i in range(2))


@dataclass(frozen=True)
class Traffic:
    """What is asked.

    Attributes:
        prompts: Asked in turn.
        output_tokens: Of each answer.
        wrong: Whether split drafts are made up.
    """

    prompts: tuple[str, ...]
    output_tokens: int = 40
    wrong: bool = False


TRAFFIC = {
    "copies": Traffic(COPIES),
    "chat": Traffic(CHAT),
    "wrong": Traffic(CHAT, wrong=True),
    "half": Traffic((COPIES[0], CHAT[0], COPIES[1], CHAT[5])),
    "6 k contexts": Traffic(LONG, output_tokens=24),
}
CELLS = tuple(f"{name}, {batch}" for name in TRAFFIC for batch in (1, 4, 8, 16))
QUICK_CELLS = ("copies, 1", "chat, 8", "half, 8")
ARMS = (NONE, AGAIN, NGRAM, ZERO, FIXED_4, FIXED_8, GOVERNOR)
QUICK_ARMS = (NONE, AGAIN, ZERO, FIXED_4, GOVERNOR)


def configs(quick: bool) -> dict[str, ClusterConfig]:
    """The lines to start, by name."""
    base = load_config(Path("configs/local.yaml"))
    model = base.model.model_copy(update={"max_model_len": 8192})
    split = SplitDrafting(workers=DraftWorkerConfig(cpus=0), local_lookup=False)
    nobody = SplitDrafting(workers=DraftWorkerConfig(cpus=0, replicas=0), local_lookup=False)
    drafting = {
        NONE: DraftingConfig(),
        SPLIT: DraftingConfig(max_length=LONGEST, split=split),
    }
    if not quick:
        drafting[NGRAM] = DraftingConfig(colocated=ColocatedDrafting(method="ngram"))
        drafting[WRONG_SPLIT] = DraftingConfig(max_length=LONGEST, split=nobody)
    changed = base.model_copy(update={"model": model})
    return {
        name: moved(changed.model_copy(update={"drafting": its_drafting}), place)
        for place, (name, its_drafting) in enumerate(drafting.items())
    }


@contextmanager
def wrong_worker(cluster: LocalCluster) -> Iterator[None]:
    """A draft worker of this cluster whose drafts are made up."""
    import tempfile

    import yaml

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(cluster.config.model_dump(mode="json")))
        file.flush()
        script = "tests/support/outside_worker.py"
        process = subprocess.Popen(
            [sys.executable, script, file.name, "wrong", "--lie", "wrong"],
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the worker that drafts nonsense did not start")
            yield
        finally:
            process.terminate()
            process.wait()


def against_best(bench: Bench, cell: str, arms: Sequence[str]) -> tuple[float, str]:
    """The governor's throughput to the best other arm's: the median over repetitions, the arm
    of each being the one that was best in all others.
    """
    values = {arm: bench.values[(arm, cell, THROUGHPUT.name)] for arm in arms}
    mine, ratios, best = values.pop(GOVERNOR), [], ""
    for i, own in enumerate(mine):

        def elsewhere(arm: str, i: int = i) -> float:
            others = [value for j, value in enumerate(values[arm]) if j != i]
            return statistics.median(others or values[arm])

        best = max(values, key=elsewhere)
        ratios.append(own / values[best][i])
    return statistics.median(ratios), best


def notes_on(bench: Bench, cells: Sequence[str], arms: Sequence[str]) -> list[str]:
    """How the governor did against the best arm of each cell, and what it is at now."""
    others = [arm for arm in arms if arm != AGAIN]
    notes = []
    for cell in cells:
        ratio, best = against_best(bench, cell, others)
        word = "met" if ratio >= WORST_RATIO else "missed"
        notes.append(f"{cell}: governor / best arm ({best}) {ratio:.3f}, >= {WORST_RATIO}: {word}")
        if cell.startswith("half") and int(cell.split(", ")[1]) >= 8:
            fixed = [arm for arm in (GOVERNOR, ZERO, FIXED_4, FIXED_8) if arm in arms]
            ratio, best = against_best(bench, cell, fixed)
            word = "met" if ratio >= HALF_GAIN else "missed"
            notes.append(f"{cell}: governor / best fixed ({best}) {ratio:.3f}, >= 1.05: {word}")
    return notes


def where_drafting_is(cluster: LocalCluster) -> str:
    """What the cluster's only verifier says of its draft lengths."""
    from cluster.render import drafting_words

    report = read_live(redis_settings(cluster.config), cluster.config.name, "verifier").reports[0]
    return drafting_words(report.governor) if report.governor else "no split drafting"


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="default 5, quick 2")
    parser.add_argument("--traffic", choices=tuple(TRAFFIC), help="only this, about 20 minutes")
    args = parser.parse_args()
    cells, arms = (QUICK_CELLS, QUICK_ARMS) if args.quick else (CELLS, ARMS)
    if args.traffic:
        cells = tuple(cell for cell in cells if cell.startswith(f"{args.traffic}, "))
    lines = configs(args.quick)
    console.print(f"  starting {len(lines)} lines side by side")
    with running(lines) as clusters:
        model = lines[NONE].model
        tokenizer = resolve_source(model.source, lines[NONE].folders.models)

        def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
            name, batch = cell.split(", ")
            traffic, concurrency = TRAFFIC[name], int(batch)
            line = SPLIT if arm in WISHES else NONE if arm == AGAIN else arm
            if line == SPLIT and traffic.wrong:
                line = WRONG_SPLIT
            load = Load(
                concurrency,
                max(2 if args.quick else 3, concurrency + min(concurrency, 8)),
                0,
                traffic.output_tokens,
                traffic.prompts,
            )
            if arm in WISHES:
                load = replace(load, xargs={"paceline_speculation": WISHES[arm]})
            result = run_load(clusters[line].url, model.name, tokenizer, load, repetition)
            return {
                THROUGHPUT.name: result["output_throughput"],
                P99_ITL.name: result["p99_itl_ms"],
            }

        bench = Bench("governor", list(arms), list(cells), [THROUGHPUT, P99_ITL])
        with wrong_worker(clusters[WRONG_SPLIT]) if not args.quick else running({}):
            for arm in (arm for arm in arms if arm in LINES):
                for name in dict.fromkeys(cell.rpartition(", ")[0] for cell in cells):
                    measure(arm, f"{name}, 4", 0)
            bench.run(measure, args.repetitions or (2 if args.quick else 5))
        bench.finish(
            [
                Comparison(GOVERNOR, NONE, AGAIN, THROUGHPUT, WORST_RATIO),
                Comparison(ZERO, NONE, AGAIN, THROUGHPUT, WORST_RATIO),
                Comparison(GOVERNOR, NONE, AGAIN, P99_ITL, WORST_P99),
            ],
            [*notes_on(bench, cells, arms), where_drafting_is(clusters[SPLIT])],
        )


if __name__ == "__main__":
    main()
