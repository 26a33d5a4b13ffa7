"""What a draft model that runs ahead is worth, against one in the verifier and none.

    make bench-lookahead        QUICK=1 make bench-lookahead

The target is SmolLM2-135M with its thirty layers and ninety more that change nothing: four times
as slow as its draft, and of the same opinion. Noise on the draft's weights lowers how often it is
right. So the pair's acceptance is made, and only the serving is measured. Arms:

    none           vLLM without speculation, twice (A/A)
    colocated k    vLLM's own `draft_model` in the verifier, drafts of k tokens
    split k        the draft model in a worker that drafts what it is asked for, then waits
    ahead k        the same with lookahead and fan-out
    governor       as `ahead`, each draft as long as pays
    none-2, colocated-2 k   as without -2, on both cores

Two placements on two cores. Where the drafter brings its own core, what is not split has one: the
arms without -2. With equal cores it has both, as split has: the arms with -2. Rates are of
decoding: what an engine of the same cores takes to read the prompts is measured apart and left
out. Each repetition has its own prompts: where two tokens are all but equally likely, the shape of
a step decides in bfloat16, so with the same prompts an arm has the same luck each time. Lengths are
compared on the first two, and what is claimed of the best on the others.
"""

import argparse
import os
import secrets
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness import Bench, Comparison

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from engine_process import Ask, EngineProcess
from lookahead_arms import (
    AGAIN,
    BRANCHED,
    GOVERNOR,
    HITS,
    METRICS,
    NONE,
    NONE_WIDE,
    STEP_TOKENS,
    THROUGHPUT,
    Part,
)
from lookahead_parts import (
    LONGEST,
    TOKEN_ENV,
    WIDE,
    ColocatedEngines,
    Place,
    draft_workers,
    judge,
    token_ids,
    verifiers,
)
from lookahead_predictions import (
    Measured,
    Rounds,
    words_on,
    words_on_rounds,
    words_on_winners,
)
from related_models import make_noisy_copy, make_padded_copy

from cluster.model_plans import hit_chance
from cluster.models import resolve_source
from cluster.profile import trip_s
from configs.sections.places import FoldersConfig

BASE, LAYERS = "builtin:smollm2-135m-instruct", 120
NOISE: Final = {"a about 1": 0.0, "a about 0.8": 0.06, "a about 0.6": 0.12}
"""Standard deviation over the weights'; what acceptance came of it is in the table."""
COLOCATED: Final = ("colocated", f"colocated{WIDE}")
SPLIT: Final = ("split", "ahead")
HEADLINE, BEST_SPLIT, HIT_SHARE = 3, 0.97, 0.9
"""Draft length of the claims, and what they claim."""
SCANS: Final = 2
"""Repetitions of all lengths, by which the best are chosen."""
TOPICS = (
    *("weather", "bread", "bicycles", "the printing press", "rivers", "bees", "trains", "glaciers"),
    *("volcanoes", "paper", "clocks", "bridges", "the piano", "forests", "cheese", "lighthouses"),
    *("wolves", "the moon", "glass", "ships", "maps", "rain", "markets", "horses"),
    *("gardens", "libraries", "salt", "windmills", "deserts", "tea", "castles", "snow"),
)
FORMS = ("Tell me what you know about {}.", "Write a short story about {}.")
PROMPTS = tuple(form.format(topic) for topic in TOPICS for form in FORMS)
JUDGED = tuple(form.format(topic) for form in FORMS for topic in TOPICS)
"""Every other one is a half with as many of each form."""
JUDGED_TOKENS: Final = 96


@dataclass(frozen=True)
class Size:
    """How much is measured: all lengths `SCANS` times, what claims are about `repetitions`."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    noises: tuple[str, ...]
    wide: bool
    judges: bool
    tokens: Mapping[int, int]
    repetitions: int


QUICK = Size((HEADLINE,), (1,), ("a about 1",), False, False, {1: 48}, SCANS + 2)
FULL = Size(
    tuple(range(1, LONGEST + 1)), (1, 4), tuple(NOISE), True, True, {1: 96, 4: 48}, SCANS + 4
)


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one length, batch 1, own core")
    parser.add_argument("--repetitions", type=int, help="of the claims' arms; default 6, quick 4")
    parser.add_argument("--acceptance", choices=tuple(NOISE), help="only this one")
    parser.add_argument("--batch", type=int, choices=FULL.batches, help="only this one")
    parser.add_argument("--lengths", type=int, nargs="+", help=f"only these, with {HEADLINE}")
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    if args.acceptance:
        size = replace(size, noises=(args.acceptance,))
    if args.batch:
        size = replace(size, batches=(args.batch,))
    if args.lengths:
        if not {HEADLINE} <= set(args.lengths) <= set(FULL.lengths):
            parser.error(f"--lengths: of 1 to {LONGEST}, with {HEADLINE}")
        size = replace(size, lengths=tuple(sorted(set(args.lengths))))
    if args.repetitions is not None:
        if args.repetitions <= SCANS:
            parser.error(f"--repetitions: {SCANS} choose lengths, at least one more compares them")
        size = replace(size, repetitions=args.repetitions)
    os.environ[TOKEN_ENV] = secrets.token_hex(16)
    drafting = [*COLOCATED[: 1 + size.wide], *SPLIT]
    lengths = [f"{family} {length}" for family in drafting for length in size.lengths]
    plain = [NONE, NONE_WIDE] if size.wide else [NONE]
    cells = [f"{noise}, batch {batch}" for noise in size.noises for batch in size.batches]
    bench = Bench("lookahead", [*plain, *lengths, GOVERNOR, AGAIN], cells, METRICS)
    notes = [
        f"target: {BASE.partition(':')[2]} padded to {LAYERS} layers that change nothing, "
        "bfloat16, eager; draft: it unpadded, with noise: the acceptance is made, not found"
    ]
    folder = Path(tempfile.mkdtemp(prefix="lookahead-"))
    try:
        base = Path(resolve_source(BASE, FoldersConfig().models))
        target = make_padded_copy(folder / "target", base, layers=LAYERS)
        with verifiers(folder, target, plain) as (unsplit, split):
            for noise in size.noises:
                draft = make_noisy_copy(folder / noise, base, noise=NOISE[noise])
                rounds = None
                with draft_workers(folder, target, draft) as workers:
                    if size.judges:
                        with judge(folder, base) as engine:
                            rounds = judged(engine, workers["waits"].endpoint, base)
                        notes += words_on_rounds(noise, rounds, HEADLINE)
                    with ColocatedEngines(folder, target, draft) as colocated:
                        place = Place(unsplit, split, colocated, workers)
                        part = Part(place, token_ids(base, PROMPTS), size.tokens)
                        measure(bench, part, f"{noise}, ", size.repetitions)
                    trip = trip_s(workers["ahead"].endpoint)
                for batch in size.batches:
                    notes += notes_on(bench, part, f"{noise}, batch {batch}", trip, rounds)
                shutil.rmtree(draft)
    finally:
        shutil.rmtree(folder)
    bench.finish(claims(cells), notes)


def judged(engine: EngineProcess, endpoint: str, base: Path) -> Rounds:
    """What becomes of drafts of the longest length, for many prompts."""
    prompts = token_ids(base, JUDGED)
    asks = [Ask(prompt=prompt, max_tokens=JUDGED_TOKENS) for prompt in prompts]
    return Rounds.of(engine.run(asks, "given", endpoint=endpoint), prompts, LONGEST)


def measure(bench: Bench, part: Part, prefix: str, repetitions: int) -> None:
    """All arms in the cells of one part, and the claims' arms more often."""
    all_arms, all_cells = list(bench.arms), list(bench.cells)
    its_cells = [cell for cell in all_cells if cell.startswith(prefix)]

    def one(arm: str, cell: str, repetition: int) -> dict[str, float]:
        return part.run(arm, int(cell.rpartition(" ")[2]), repetition)

    def one_more(arm: str, cell: str, repetition: int) -> dict[str, float]:
        return one(arm, cell, SCANS + repetition)

    for cell in its_cells:
        one(GOVERNOR, cell, 0)  # it learns; and every process has seen such a batch
    bench.cells = its_cells
    # An arm's engine is started once for all cells, and one length is measured after the other:
    # what arithmetic needs to know of a length is from the same minutes.
    for arm in sorted(all_arms, key=length_of):
        bench.arms = [arm]
        bench.run(one, SCANS)
    for cell in its_cells:
        bench.arms, bench.cells = all_arms, [cell]
        bench.arms = headline(bench, cell)
        bench.run(one_more, repetitions - SCANS)
    bench.arms, bench.cells = all_arms, all_cells


def length_of(arm: str) -> int:
    """Of its drafts, 0 where it has none or they have several."""
    length = arm.partition(" ")[2]
    return int(length) if length.isdigit() else 0


def rate(bench: Bench, arm: str, cell: str) -> float:
    """Median tokens/s."""
    return statistics.median(bench.values[arm, cell, THROUGHPUT.name])


def arms_of(bench: Bench, family: str) -> list[str]:
    """The arms of a family, by growing length."""
    return [arm for arm in bench.arms if arm.startswith(f"{family} ")]


def best_of(bench: Bench, cell: str, *of: str) -> str:
    """The arm of these families that was fastest when lengths were compared."""
    arms = [arm for family in of for arm in arms_of(bench, family)]
    return max(
        arms, key=lambda arm: statistics.mean(bench.values[arm, cell, THROUGHPUT.name][:SCANS])
    )


def headline(bench: Bench, cell: str) -> list[str]:
    """The arms that claims are about, and the best length of each family."""
    chosen = {NONE, NONE_WIDE, AGAIN, GOVERNOR}
    chosen |= {f"{family} {HEADLINE}" for family in (COLOCATED[0], *SPLIT)}
    chosen |= {best_of(bench, cell, family) for family in families(bench)}
    return [arm for arm in bench.arms if arm in chosen]


def families(bench: Bench) -> list[str]:
    """With draft lengths, of this run."""
    return [family for family in (*COLOCATED, *SPLIT) if arms_of(bench, family)]


def claims(cells: Sequence[str]) -> list[Comparison]:
    """What should hold, in those of the cells where it should."""
    ahead, colocated = f"ahead {HEADLINE}", f"colocated {HEADLINE}"
    targets = (
        (NONE, 3.0, "a about 1, batch 1"),
        (colocated, 1.4, "a about 1, batch 1"),
        (colocated, 1.1, "a about 0.8, batch 1"),
        *((f"split {HEADLINE}", 1.0, cell) for cell in cells),
    )
    return [
        Comparison(ahead, base, AGAIN, THROUGHPUT, target, cells=(cell,), aa_base=NONE)
        for base, target, cell in targets
        if cell in cells
    ]


def notes_on(bench: Bench, part: Part, cell: str, trip: float, rounds: Rounds | None) -> list[str]:
    """What the pair costs, all lengths in a line, and what arithmetic says of them."""
    batch = int(cell.rpartition(" ")[2])
    seen = part.seen[batch]
    verify_s = {length: statistics.median(taken) for length, taken in seen.verify_s.items()}
    draft_s = {arm: statistics.median(taken) for arm, taken in seen.draft_s.items()}
    told = [
        f"{cell}: T_p {1e3 * verify_s[0]:.0f} ms, "
        f"T_q {1e3 * draft_s[f'split {HEADLINE}']:.0f} ms, "
        f"RTT {1e3 * trip:.2f} ms; none {rate(bench, NONE, cell):.2f} tokens/s, "
        f"governor {rate(bench, GOVERNOR, cell):.2f}",
        f"{cell}: T_p by draft length, ms: {in_ms(verify_s)}",
        f"{cell}: T_q by arm, ms: {in_ms(draft_s)}",
    ]
    for family in families(bench):
        rates = " ".join(f"{rate(bench, arm, cell):.2f}" for arm in arms_of(bench, family))
        best = best_of(bench, cell, family)
        told.append(f"{cell}: {family}, tokens/s by length: {rates}; best at first: {best}")
    told.append(f"{cell}: {words_on_governor(bench, cell)}")
    if rounds is None:
        return told
    told.append(f"{cell}: {words_on_hits(bench, cell, rounds)}")
    rates_by_arm = {arm: rate(bench, arm, cell) for arm in bench.arms}
    step_tokens = {
        arm: statistics.mean(bench.values[arm, cell, STEP_TOKENS.name]) for arm in bench.arms
    }
    followed, branched = went(bench, cell)
    prepared = branched / (1 - followed) if followed < 1 else 0.0
    own = Measured(
        *(batch, rates_by_arm, step_tokens, verify_s, draft_s, trip, rounds.acceptance, prepared)
    )
    split_arms = [arm for family in SPLIT for arm in arms_of(bench, family)]
    told += words_on(cell, own, [NONE, *arms_of(bench, COLOCATED[0]), *split_arms])
    if seen.wide_s:
        wide_arms = arms_of(bench, COLOCATED[1])
        wide = own.on_both(statistics.median(seen.wide_s))
        told += words_on(f"{cell}, equal cores", wide, [NONE_WIDE, *wide_arms])
        told.append(f"{cell}, {words_on_winners(own, wide, wide_arms)}")
    return told


def in_ms(seconds: Mapping[Any, float]) -> str:
    """By what they belong to."""
    return ", ".join(f"{name} {1e3 * taken:.0f}" for name, taken in sorted(seconds.items()))


def words_on_governor(bench: Bench, cell: str) -> str:
    """Against the split arm that was best when lengths were compared, repetition by repetition."""
    best = best_of(bench, cell, *SPLIT)
    ours, its = (bench.values[arm, cell, THROUGHPUT.name][SCANS:] for arm in (GOVERNOR, best))
    ratios = [a / b for a, b in zip(ours, its, strict=True)]
    word = "met" if statistics.median(ratios) >= BEST_SPLIT else "missed"
    return (
        f"governor / best split arm ({best}) {statistics.median(ratios):.3f} "
        f"({' '.join(f'{ratio:.2f}' for ratio in ratios)}), >= {BEST_SPLIT}: {word}"
    )


def went(bench: Bench, cell: str) -> tuple[float, float]:
    """How often texts went on as drafted, and a prepared way, with drafts of the claims' length."""
    hits, others = (
        statistics.mean(bench.values[f"ahead {HEADLINE}", cell, metric.name])
        for metric in (HITS, BRANCHED)
    )
    return hits, others


def words_on_hits(bench: Bench, cell: str, rounds: Rounds) -> str:
    """How often the worker was right about all that came, beside how often it could be."""
    hits, others = went(bench, cell)
    could = hit_chance(rounds.acceptance, HEADLINE)
    word = "met" if hits >= HIT_SHARE * could else "missed"
    return (
        f"ahead {HEADLINE} went on as drafted in {hits:.2f} of asks, a prepared way in "
        f"{others:.2f}; a^(K+1) is {could:.2f}, >= {HIT_SHARE:g} of it: {word}"
    )


if __name__ == "__main__":
    main()
