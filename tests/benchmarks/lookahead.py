"""What a draft model that runs ahead is worth, against one in the verifier and none.

    make bench-lookahead        QUICK=1 make bench-lookahead

The target is SmolLM2-135M with its thirty layers and ninety more that change nothing: four times
as slow as its draft, and of the same opinion. Noise on the draft's weights lowers how often it is
right. So the pair's acceptance is made, and only the serving is measured. Arms:

    none          vLLM without speculation, twice (A/A)
    colocated k   vLLM's own `draft_model` in the verifier, drafts of k tokens
    split k       the draft model in a worker that drafts what it is asked for, then waits
    ahead k       the same with lookahead and fan-out
    governor      as `ahead`, each draft as long as pays

Two placements on two cores: in `own core` the drafter brings its own, and all others have one; in
`equal cores` none and colocated have two, and split has one for each half.
"""

import argparse
import os
import secrets
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import Bench, Comparison, Metric, console

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from engine_process import Ask, EngineProcess, Run
from lookahead_predictions import FAMILIES, Half, Measured, words_on
from model_workers import ModelWorker
from related_models import make_noisy_copy, make_padded_copy
from transformers import AutoTokenizer

from cluster.models import resolve_source
from cluster.profile import trip_s
from configs.schema import ClusterConfig
from configs.sections.places import FoldersConfig

TOKEN_ENV = "DRAFT_TOKEN_OF_TEST"
BASE, LAYERS = "builtin:smollm2-135m-instruct", 120
LONGEST, LOOKAHEAD, FAN_OUT, CONTEXT = 8, 8, 1, 1024
NOISE = {"a about 1": 0.0, "a about 0.8": 0.12, "a about 0.6": 0.2}
"""Standard deviation over the weights'; what acceptance came of it is in the table."""
NONE, AGAIN, GOVERNOR = "none", "none again", "governor"
THROUGHPUT = Metric("output throughput", "tokens/s", higher_is_better=True)
ACCEPTANCE = Metric("drafts accepted", "0-1", higher_is_better=True)
STEP_TOKENS = Metric("tokens a step and request", "tokens", higher_is_better=True)
READY = Metric("asks that lookahead had ready", "0-1", higher_is_better=True)
HIDDEN = Metric("drafting time hidden", "0-1", higher_is_better=True)
METRICS = (THROUGHPUT, ACCEPTANCE, STEP_TOKENS, READY, HIDDEN)
PROMPTS = (
    "Explain in simple words why the sky is blue during the day and red in the evening.",
    "Write a short story about a cyclist who gets lost in the mountains and finds a village.",
    "List five things to check before a long journey by bicycle, with a reason for each.",
    "Describe how bread is made, from the field to the oven, for a child of eight years.",
    "What is the difference between weather and climate? Give an example of each.",
    "Tell me about the history of the printing press and what it changed in Europe.",
    "How does a refrigerator keep food cold? Describe the parts and what they do.",
    "Write a letter to a friend who wants to learn to play the piano and has little time.",
)


@dataclass(frozen=True)
class Cores:
    """Where a process computes: a command before it, and its threads."""

    prefix: tuple[str, ...]
    threads: int


VERIFIER, DRAFTER = Cores(("taskset", "-c", "0"), 1), Cores(("taskset", "-c", "1"), 1)
BOTH = Cores((), 2)


@dataclass(frozen=True)
class Size:
    """How much is measured: all lengths once, what the claims are about `repetitions` times."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    noises: tuple[str, ...]
    placements: tuple[str, ...]
    prompts: int
    tokens: int
    repetitions: int


QUICK = Size((3,), (1,), ("a about 1",), ("own core",), 2, 32, 1)
FULL = Size(tuple(range(1, 9)), (1, 4), tuple(NOISE), ("own core", "equal cores"), 4, 32, 5)
HEADLINE = 3
"""Draft length of the claims."""


@dataclass
class Place:
    """What runs for one placement and one acceptance."""

    plain: EngineProcess
    split: EngineProcess
    colocated: dict[int, EngineProcess]
    workers: dict[str, ModelWorker]
    step_s: dict[str, float] = field(default_factory=dict)
    verify_s: dict[int, list[float]] = field(default_factory=dict)
    halves: tuple[Half, Half] = field(default_factory=lambda: (Half(), Half()))


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one length, batch 1, own core")
    parser.add_argument("--repetitions", type=int, help="of the claims' arms; default 5, quick 1")
    parser.add_argument("--acceptance", choices=tuple(NOISE), help="only this one")
    parser.add_argument("--placement", choices=FULL.placements, help="only this one")
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    if args.acceptance:
        size = replace(size, noises=(args.acceptance,))
    if args.placement:
        size = replace(size, placements=(args.placement,))
    os.environ[TOKEN_ENV] = secrets.token_hex(16)
    lengths = [f"{family} {length}" for family in FAMILIES for length in size.lengths]
    cells = [
        f"{placement}, {noise}, batch {batch}"
        for placement in size.placements
        for noise in size.noises
        for batch in size.batches
    ]
    bench = Bench("lookahead", [NONE, *lengths, GOVERNOR, AGAIN], cells, METRICS)
    notes = [
        f"target: {BASE.partition(':')[2]} padded to {LAYERS} layers that change nothing, "
        "bfloat16, eager; draft: it unpadded, with noise: the acceptance is made, not found"
    ]
    folder = Path(tempfile.mkdtemp(prefix="lookahead-"))
    try:
        base = Path(resolve_source(BASE, FoldersConfig().models))
        target = make_padded_copy(folder / "target", base, layers=LAYERS)
        prompts = token_ids(base)
        for placement in size.placements:
            with verifiers(folder, target, placement) as (plain, split):
                for noise in size.noises:
                    draft = make_noisy_copy(folder / noise, base, noise=NOISE[noise])
                    with drafters(folder, target, draft, placement, size) as (colocated, workers):
                        place = Place(plain, split, colocated, workers)
                        measure(bench, place, placement, noise, size, prompts, args.repetitions)
                        notes += notes_on(bench, place, f"{placement}, {noise}, batch 1")
                    shutil.rmtree(draft)
    finally:
        shutil.rmtree(folder)
    bench.finish(claims(size), notes)


def measure(
    bench: Bench,
    place: Place,
    placement: str,
    noise: str,
    size: Size,
    prompts: list[list[int]],
    repetitions: int | None,
) -> None:
    """All arms in the cells of one placement and acceptance."""
    all_cells, prefix = list(bench.cells), f"{placement}, {noise}, "
    bench.cells = [cell for cell in all_cells if cell.startswith(prefix)]

    def one(arm: str, cell: str, _: int) -> dict[str, float]:
        batch = int(cell.rpartition(" ")[2])
        return run_arm(place, arm, batch, prompts[: size.prompts], size.tokens)

    for arm in bench.arms:
        run_arm(place, arm, 1, prompts[:1], 8)
    bench.run(one, 1)
    all_arms = list(bench.arms)
    bench.arms = headline(bench)
    bench.run(one, (repetitions or size.repetitions) - 1)
    bench.arms, bench.cells = all_arms, all_cells


def headline(bench: Bench) -> list[str]:
    """The arms that claims are about, and the best length of each family in the first cell."""
    lengths = {int(arm.split()[1]) for arm in bench.arms if " " in arm and arm != AGAIN}
    length = HEADLINE if HEADLINE in lengths else min(lengths)
    chosen = {NONE, AGAIN, GOVERNOR, *(f"{family} {length}" for family in FAMILIES)}
    for family in FAMILIES:
        its = [arm for arm in bench.arms if arm.startswith(f"{family} ")]
        chosen.add(max(its, key=lambda arm: bench.values[(arm, bench.cells[0], THROUGHPUT.name)]))
    return [arm for arm in bench.arms if arm in chosen]


def run_arm(
    place: Place, arm: str, batch: int, prompts: list[list[int]], tokens: int
) -> dict[str, float]:
    """One measurement: all prompts, `batch` at a time."""
    kind, _, length = arm.partition(" ")
    worker = place.workers.get(
        {"split": "waits", "ahead": "ahead", GOVERNOR: "ahead"}.get(kind, "")
    )
    wish: dict[str, str | int] = {}
    if kind in ("split", "ahead"):
        engine, wish = place.split, {"paceline_speculation": int(length)}
    elif kind == "colocated":
        engine = place.colocated[int(length)]
    else:
        engine = place.split if kind == GOVERNOR else place.plain
    before = worker.stats() if worker is not None else {}
    runs: list[Run] = []
    for first in range(0, len(prompts), batch):
        asks = [
            Ask(prompt=prompt, max_tokens=tokens, xargs=wish)
            for prompt in prompts[first : first + batch]
        ]
        if worker is None:
            runs.append(engine.run(asks, "none"))
        else:
            runs.append(engine.run(asks, "given", endpoint=worker.endpoint))
    if batch == 1 and len(prompts) > 1:
        _remember(place, arm, runs, tokens)
    total = tokens * len(prompts)
    seconds = sum(run.seconds for run in runs)
    drafted = sum(run.drafted for run in runs)
    values = {
        THROUGHPUT.name: total / seconds,
        STEP_TOKENS.name: total / sum(run.steps * min(batch, len(prompts)) for run in runs),
    }
    if drafted:
        values[ACCEPTANCE.name] = sum(run.accepted for run in runs) / drafted
    if worker is not None and drafted:
        after = worker.stats()
        asked = after["counts"]["asked"] - before["counts"]["asked"]
        ready = after["counts"]["ready"] - before["counts"]["ready"]
        step_s = place.step_s[arm] = after["step_s"]
        # Rows of one batch are drafted together.
        drafting_s = drafted / batch * step_s
        values[READY.name] = ready / asked if asked else 0.0
        values[HIDDEN.name] = max(0.0, 1 - sum(run.wait_s for run in runs) / drafting_s)
    return values


def _remember(place: Place, arm: str, runs: list[Run], tokens: int) -> None:
    """Keeps what predictions are made from: steps without waiting, and acceptance by place."""
    kind, _, length = arm.partition(" ")
    if arm == NONE or kind == "split":
        verifying_s = sum(run.seconds - run.wait_s for run in runs) / sum(r.steps for r in runs)
        place.verify_s.setdefault(int(length or 0), []).append(verifying_s)
    if kind == "split" and int(length) == max(place.colocated):
        middle = len(runs) // 2
        for half, its in zip(place.halves, (runs[:middle], runs[middle:]), strict=True):
            for run in its:
                half.add(run.drafted_at, run.accepted_at, tokens, run.steps)


def engine(folder: Path, name: str, target: Path, cores: Cores, **more: Any) -> EngineProcess:
    """A verifier's engine."""
    console.print(f"  starting {name}")
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
    }
    log = folder / f"{name}.log"
    return EngineProcess(
        target, log, prefix=cores.prefix, threads=cores.threads, **(arguments | more)
    )


@contextmanager
def verifiers(
    folder: Path, target: Path, placement: str
) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """Without speculation, and with draft workers: their requests say how long drafts are, or have
    the governor decide.
    """
    split = {"local_lookup": False, "wait_fraction": 1.0, "wait_max_ms": 1000.0}
    drafting = {"max_length": LONGEST, "split": split, "governor": "auto", "patience_s": None}
    with (
        engine(folder, "plain", target, cores_of(placement)) as plain,
        engine(folder, "split", target, VERIFIER, **drafting) as drafts,
    ):
        for one in (plain, drafts):
            one.run([Ask(prompt=[1, 2, 3], max_tokens=2)], "none")
        yield plain, drafts


@contextmanager
def drafters(
    folder: Path, target: Path, draft: Path, placement: str, size: Size
) -> Iterator[tuple[dict[int, EngineProcess], dict[str, ModelWorker]]]:
    """All that have the draft model; who is not asked takes no time."""
    with ExitStack() as stack:
        workers = {
            "waits": stack.enter_context(worker(folder / "waits", target, draft, 0, 0)),
            "ahead": stack.enter_context(
                worker(folder / "ahead", target, draft, LOOKAHEAD, FAN_OUT)
            ),
        }
        colocated = {}
        for length in size.lengths:
            spec = {
                "method": "draft_model",
                "model": str(draft),
                "num_speculative_tokens": length,
            }
            name = f"colocated {length}"
            colocated[length] = stack.enter_context(
                engine(folder, name, target, cores_of(placement), speculative_config=spec)
            )
            colocated[length].run([Ask(prompt=[1, 2, 3], max_tokens=2)], "none")
        for one in workers.values():
            assert one.endpoint, "waits until it is ready"
        yield colocated, workers


def cores_of(placement: str) -> Cores:
    """What everything gets that does not split the work."""
    return VERIFIER if placement == "own core" else BOTH


def worker(folder: Path, target: Path, draft: Path, lookahead: int, fan_out: int) -> ModelWorker:
    """A draft worker."""
    model = {
        "source": str(draft),
        "dtype": "bfloat16",
        "eager": True,
        "sessions": 16,
        "lookahead": lookahead,
        "fan_out": fan_out,
    }
    split = {"token": {"env": TOKEN_ENV}, "workers": {"kinds": ["model"], "draft": model}}
    config = ClusterConfig.model_validate(
        {
            "model": {"name": "m", "source": str(target), "max_model_len": CONTEXT},
            "drafting": {"split": split},
        }
    )
    return ModelWorker(config, folder, DRAFTER.prefix, DRAFTER.threads)


def token_ids(base: Path) -> list[list[int]]:
    """The prompts, as chats."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in PROMPTS
    ]


def claims(size: Size) -> list[Comparison]:
    """What should hold; the cells say where it does."""
    length = HEADLINE if HEADLINE in size.lengths else size.lengths[0]
    ahead = f"ahead {length}"
    return [
        Comparison(ahead, NONE, AGAIN, THROUGHPUT, 3.0),
        Comparison(ahead, f"colocated {length}", f"colocated {length}", THROUGHPUT, 1.4),
        Comparison(ahead, f"split {length}", f"split {length}", THROUGHPUT, 1.0),
        Comparison(GOVERNOR, ahead, ahead, THROUGHPUT, 0.97),
    ]


def notes_on(bench: Bench, place: Place, cell: str) -> list[str]:
    """What the pair costs, and which length was the best of each family."""

    def tokens_s(arm: str) -> float:
        return statistics.median(bench.values[(arm, cell, THROUGHPUT.name)])

    draft_s = statistics.median(place.step_s.values())
    best = [
        max((arm for arm in bench.arms if arm.startswith(family)), key=tokens_s)
        for family in FAMILIES
    ]
    verify_s = {length: statistics.median(taken) for length, taken in place.verify_s.items()}
    shares_cores = cell.startswith("own core")
    short = min(place.colocated)
    drafted = bench.values[(f"colocated {short}", cell, STEP_TOKENS.name)]
    round_s = statistics.median(drafted) / tokens_s(f"colocated {short}")
    measured = Measured(
        {arm: tokens_s(arm) for arm in bench.arms},
        verify_s,
        draft_s,
        trip_s(place.workers["ahead"].endpoint),
        place.halves,
        None if shares_cores else max(0.0, (round_s - verify_s[short]) / short),
    )
    arms = [arm for arm in bench.arms if arm not in (AGAIN, GOVERNOR)]
    return [
        f"{cell}: T_p {1e3 * verify_s[0]:.0f} ms, T_q {1e3 * draft_s:.0f} ms, RTT "
        f"{1e3 * measured.trip_s:.2f} ms; best: {', '.join(best)}",
        *words_on(cell, measured, arms),
    ]


if __name__ == "__main__":
    main()
