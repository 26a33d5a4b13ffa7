"""Requests to replay: when, how long, which blocks they share.

`mooncake` is the synthetic trace of Mooncake (Qin et al., FAST'25), made a sixteenth as long: its
512-token blocks are 32 tokens here. It lies beside this file without its block numbers, which
follow from what each request shares with an earlier one; made by

    python tests/benchmarks/traces.py synthetic_trace.jsonl > tests/benchmarks/data/mooncake.csv

`conversations` are made up: talks of many turns over a few system prompts.
"""

import csv
import json
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

MOONCAKE = Path(__file__).parent / "data" / "mooncake.csv"
MOONCAKE_BLOCK = 512
HEADER = """\
# Derived from synthetic_trace.jsonl of https://github.com/kvcache-ai/Mooncake (FAST25-release),
# Apache License 2.0: block numbers are left out, what is shared is told. `like` is the line
# (from 0) of an earlier request with the same first `shared` blocks of 512 tokens.
"""


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: when, how long, which blocks, how long an answer."""

    at_s: float
    prompt_tokens: int
    chain: tuple[int, ...]
    output_tokens: int


def mooncake(block_tokens: int) -> list[Arrival]:
    """All 3,993 requests, at their own times (1,022 s).

    Args:
        block_tokens: What 512 tokens become.
    """
    lines = [line for line in MOONCAKE.read_text().splitlines() if not line.startswith("#")]
    chains: list[tuple[int, ...]] = []
    next_block, arrivals = 1, []
    for row in csv.DictReader(lines):
        tokens, shared = int(row["input_tokens"]), int(row["shared"])
        count = -(-tokens // MOONCAKE_BLOCK)
        first = chains[int(row["like"])][:shared] if shared else ()
        new = range(next_block, next_block + count - shared)
        next_block += len(new)
        chains.append((*first, *new))
        scaled = max(1, tokens * block_tokens // MOONCAKE_BLOCK)
        whole = chains[-1][: scaled // block_tokens]
        at_s = int(row["timestamp_ms"]) / 1000
        arrivals.append(Arrival(at_s, scaled, whole, max(1, int(row["output_tokens"]))))
    return arrivals


def conversations(seed: int, count: int, block_tokens: int) -> list[Arrival]:
    """Multi-turn conversations over 12 shared system prompts, one arrival a second.

    Args:
        seed: Of everything random.
        count: Requests.
        block_tokens: Tokens of one block.
    """
    rng = random.Random(seed)
    next_block = iter(range(1, 1 << 40))
    systems = [[next(next_block) for _ in range(rng.randrange(10, 60))] for _ in range(12)]
    open_talks: list[list[int]] = []
    arrivals, at_s = [], 0.0
    for _ in range(count):
        if open_talks and rng.random() < 0.75:
            talk = open_talks[rng.randrange(len(open_talks))]
        else:
            talk = list(rng.choices(systems, weights=[1 / (n + 1) for n in range(12)])[0])
            open_talks.append(talk)
            if len(open_talks) > 60:
                open_talks.pop(0)
        talk += [next(next_block) for _ in range(rng.randrange(1, 14))]
        tokens = len(talk) * block_tokens + rng.randrange(block_tokens)
        at_s += rng.expovariate(1.0)
        arrivals.append(Arrival(at_s, tokens, tuple(talk), rng.randrange(20, 200)))
        talk += [next(next_block) for _ in range(rng.randrange(1, 6))]  # the answer
    return arrivals


def at_load(trace: Sequence[Arrival], tokens_per_s: float, seed: int) -> list[Arrival]:
    """The same requests in the time in which they ask for so many prompt tokens a second.

    Each comes up to one mean gap later than its place says, which differs by seed.
    """
    rng = random.Random(seed)
    tokens = sum(arrival.prompt_tokens for arrival in trace)
    stretch = tokens / tokens_per_s / (trace[-1].at_s - trace[0].at_s)
    gap_s = tokens / tokens_per_s / len(trace)
    timed = [
        replace(arrival, at_s=arrival.at_s * stretch + rng.uniform(0, gap_s)) for arrival in trace
    ]
    return sorted(timed, key=lambda arrival: arrival.at_s)


def derive(lines: Iterable[str]) -> Iterable[str]:
    """`MOONCAKE`'s lines, from the trace as it was released.

    Raises:
        ValueError: A block follows two different ones, so that its number is no chain.
    """
    yield HEADER + "timestamp_ms,input_tokens,output_tokens,like,shared"
    before: dict[int, int] = {}
    first_with: dict[int, int] = {}
    for number, line in enumerate(lines):
        request = json.loads(line)
        blocks = request["hash_ids"]
        like = shared = 0
        for place, block in enumerate(blocks):
            above = blocks[place - 1] if place else -1
            if before.setdefault(block, above) != above:
                raise ValueError(f"line {number}: block {block} follows {above}, too")
            if block in first_with and shared == place:
                like, shared = first_with[block], place + 1
        for block in blocks:
            first_with.setdefault(block, number)
        sizes = (request["timestamp"], request["input_length"], request["output_length"])
        yield ",".join(map(str, (*sizes, like, shared)))


def mean_prompt(trace: Sequence[Arrival]) -> float:
    """Tokens of a prompt, on average."""
    return statistics.mean(arrival.prompt_tokens for arrival in trace)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as released:
        for derived in derive(released):
            print(derived)  # noqa: T201
