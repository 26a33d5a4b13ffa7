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
`equal cores` none and colocated have two, and split has one for each half. Rates are of decoding:
what an engine of the same cores takes to read the prompts is measured apart and left out.
"""

import argparse
import os
import secrets
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from harness import Bench, Comparison

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from engine_process import Ask, EngineProcess
from lookahead_arms import (
    AGAIN,
    GOVERNOR,
    HITS,
    METRICS,
    NONE,
    STEP_TOKENS,
    THROUGHPUT,
    Part,
)
from lookahead_parts import (
    LONGEST,
    TOKEN_ENV,
    ColocatedEngines,
    Place,
    draft_workers,
    judge,
    token_ids,
    verifiers,
)
from lookahead_predictions import FAMILIES, Measured, Rounds, words_on, words_on_rounds
from related_models import make_noisy_copy, make_padded_copy

from cluster.model_plans import hit_chance
from cluster.models import resolve_source
from cluster.profile import trip_s
from configs.sections.places import FoldersConfig

BASE, LAYERS = "builtin:smollm2-135m-instruct", 120
NOISE: Final = {"a about 1": 0.0, "a about 0.8": 0.06, "a about 0.6": 0.12}
"""Standard deviation over the weights'; what acceptance came of it is in the table."""
HEADLINE, BEST_SPLIT, HIT_SHARE = 3, 0.97, 0.9
"""Draft length of the claims, and what they claim."""
PROMPTS = (
    "Explain in simple words why the sky is blue during the day and red in the evening.",
    "Write a short story about a cyclist who gets lost in the mountains and finds a village.",
    "List five things to check before a long journey by bicycle, with a reason for each.",
    "Describe how bread is made, from the field to the oven, for a child of eight years.",
)
TOPICS = (
    *("weather", "bread", "bicycles", "the printing press", "rivers", "bees", "trains", "glaciers"),
    *("volcanoes", "paper", "clocks", "bridges", "the piano", "forests", "cheese", "lighthouses"),
)
JUDGED = tuple(
    form.format(topic)
    for topic in TOPICS
    for form in ("Tell me what you know about {}.", "Write a short story about {}.")
)
JUDGED_TOKENS: Final = 96


@dataclass(frozen=True)
class Size:
    """How much is measured: all lengths once, what the claims are about `repetitions` times."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    noises: tuple[str, ...]
    placements: tuple[str, ...]
    judges: bool
    tokens: int
    repetitions: int


QUICK = Size((HEADLINE,), (1,), ("a about 1",), ("own core",), False, 32, 2)
FULL = Size(
    tuple(range(1, LONGEST + 1)), (1, 4), tuple(NOISE), ("own core", "equal cores"), True, 48, 3
)


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one length, batch 1, own core")
    parser.add_argument("--repetitions", type=int, help="of the claims' arms; default 3, quick 2")
    parser.add_argument("--acceptance", choices=tuple(NOISE), help="only this one")
    parser.add_argument("--batch", type=int, choices=FULL.batches, help="only this one")
    parser.add_argument("--placement", choices=FULL.placements, help="only this one")
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    if args.acceptance:
        size = replace(size, noises=(args.acceptance,))
    if args.placement:
        size = replace(size, placements=(args.placement,))
    if args.batch:
        size = replace(size, batches=(args.batch,))
    if args.repetitions:
        size = replace(size, repetitions=args.repetitions)
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
        rounds: dict[str, Rounds] = {}
        for placement in size.placements:
            with verifiers(folder, target, placement) as (plain, split):
                for noise in size.noises:
                    draft = make_noisy_copy(folder / noise, base, noise=NOISE[noise])
                    with draft_workers(folder, target, draft) as workers:
                        if size.judges and noise not in rounds:
                            with judge(folder, base) as engine:
                                rounds[noise] = judged(engine, workers["waits"].endpoint, base)
                            notes += words_on_rounds(noise, rounds[noise], HEADLINE)
                        with ColocatedEngines(folder, target, draft, placement) as colocated:
                            place = Place(plain, split, colocated, workers)
                            part = Part(place, token_ids(base, PROMPTS), size.tokens)
                            measure(bench, part, f"{placement}, {noise}, ", size.repetitions)
                        trip = trip_s(workers["ahead"].endpoint)
                    for batch in size.batches:
                        cell = f"{placement}, {noise}, batch {batch}"
                        notes += notes_on(bench, part, cell, trip, rounds.get(noise))
                    shutil.rmtree(draft)
    finally:
        shutil.rmtree(folder)
    bench.finish(claims(), notes)


def judged(engine: EngineProcess, endpoint: str, base: Path) -> Rounds:
    """What becomes of drafts of the longest length, for many prompts."""
    prompts = token_ids(base, JUDGED)
    asks = [Ask(prompt=prompt, max_tokens=JUDGED_TOKENS) for prompt in prompts]
    return Rounds.of(engine.run(asks, "given", endpoint=endpoint), prompts, LONGEST)


def measure(bench: Bench, part: Part, prefix: str, repetitions: int) -> None:
    """All arms in the cells of one part, and the claims' arms more than once."""
    all_arms, all_cells = list(bench.arms), list(bench.cells)
    its_cells = [cell for cell in all_cells if cell.startswith(prefix)]

    def one(arm: str, cell: str, _: int) -> dict[str, float]:
        return part.run(arm, int(cell.rpartition(" ")[2]))

    for cell in its_cells:
        one(GOVERNOR, cell, 0)  # it learns; and every process has seen such a batch
    bench.cells = its_cells
    for arm in all_arms:
        bench.arms = [arm]  # an arm's engine is started once for all cells
        bench.run(one, 1)
    for cell in its_cells:
        bench.arms, bench.cells = all_arms, [cell]
        bench.arms = headline(bench, cell)
        bench.run(one, repetitions - 1)
    bench.arms, bench.cells = all_arms, all_cells


def rate(bench: Bench, arm: str, cell: str) -> float:
    """Median tokens/s."""
    return statistics.median(bench.values[arm, cell, THROUGHPUT.name])


def arms_of(bench: Bench, family: str) -> list[str]:
    """The arms of a family, by growing length."""
    return [arm for arm in bench.arms if arm.startswith(f"{family} ")]


def best_of(bench: Bench, family: str, cell: str) -> str:
    """The arm of a family that was fastest."""
    return max(arms_of(bench, family), key=lambda arm: rate(bench, arm, cell))


def headline(bench: Bench, cell: str) -> list[str]:
    """The arms that claims are about, and the best length of each family."""
    chosen = {NONE, AGAIN, GOVERNOR, *(f"{family} {HEADLINE}" for family in FAMILIES)}
    chosen |= {best_of(bench, family, cell) for family in FAMILIES}
    return [arm for arm in bench.arms if arm in chosen]


def claims() -> list[Comparison]:
    """What should hold; the cells say where it does."""
    ahead = f"ahead {HEADLINE}"
    return [
        Comparison(ahead, base, AGAIN, THROUGHPUT, target, aa_base=NONE)
        for base, target in (
            (NONE, 3.0),
            (f"colocated {HEADLINE}", 1.4),
            (f"split {HEADLINE}", 1.0),
        )
    ]


def notes_on(bench: Bench, part: Part, cell: str, trip: float, rounds: Rounds | None) -> list[str]:
    """What the pair costs, all lengths in a line, and what arithmetic says of them."""
    batch = int(cell.rpartition(" ")[2])
    seen = part.seen[batch]
    verify_s = {length: statistics.median(taken) for length, taken in seen.verify_s.items()}
    draft_s = statistics.median(seen.draft_s)
    best = {family: best_of(bench, family, cell) for family in FAMILIES}
    told = [
        f"{cell}: T_p {1e3 * verify_s[0]:.0f} ms, T_q {1e3 * draft_s:.0f} ms, "
        f"RTT {1e3 * trip:.2f} ms; none {rate(bench, NONE, cell):.2f} tokens/s, "
        f"governor {rate(bench, GOVERNOR, cell):.2f}"
    ]
    for family in FAMILIES:
        rates = " ".join(f"{rate(bench, arm, cell):.2f}" for arm in arms_of(bench, family))
        told.append(f"{cell}: {family}, tokens/s by length: {rates}; best: {best[family]}")
    split = max(best["split"], best["ahead"], key=lambda arm: rate(bench, arm, cell))
    ratio = rate(bench, GOVERNOR, cell) / rate(bench, split, cell)
    word = "met" if ratio >= BEST_SPLIT else "missed"
    told.append(f"{cell}: governor / best split arm ({split}) {ratio:.3f}, >= {BEST_SPLIT}: {word}")
    if rounds is None:
        return told
    arm = f"ahead {HEADLINE}"
    hits = statistics.median(bench.values[arm, cell, HITS.name])
    could = hit_chance(rounds.acceptance, HEADLINE, 1)
    word = "met" if hits >= HIT_SHARE * could else "missed"
    told.append(
        f"{cell}: {arm} went on as drafted in {hits:.2f} of asks, a^(K+1) is {could:.2f}, "
        f">= {HIT_SHARE:g} of it: {word}"
    )
    shortest = min(length for length in verify_s if length)
    arm = f"colocated {shortest}"
    step_s = statistics.median(bench.values[arm, cell, STEP_TOKENS.name]) * batch
    in_verifier_s = (step_s / rate(bench, arm, cell) - verify_s[shortest]) / shortest
    measured = Measured(
        batch,
        {arm: rate(bench, arm, cell) for arm in bench.arms},
        verify_s,
        draft_s,
        trip,
        rounds.acceptance,
        None if cell.startswith("own core") else max(0.0, in_verifier_s),
    )
    arms = [arm for arm in bench.arms if arm not in (AGAIN, GOVERNOR)]
    return told + words_on(cell, measured, arms)


if __name__ == "__main__":
    main()
