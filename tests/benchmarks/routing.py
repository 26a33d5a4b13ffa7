"""What the prefix-aware router costs, and what it is worth.

    make bench-router          QUICK=1 make bench-router

Four parts, chosen with `--parts`: (a) the index and the decision by themselves, 64 verifiers and a
million blocks; (b) policies side by side in simulated time over eight mock engines with real
eviction and hidden prefill rates; (c) the same engines over HTTP in real time, beside vllm-router
where it is installed; (d), only when asked for, two verifiers of this machine under each policy.
"""

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence

import msgspec
import numpy as np
from harness import Bench, Metric, console
from mock_engines import MockEngine, Simulation, Speed
from routing_http import http
from routing_policies import POLICIES, Policy
from traces import Arrival, at_load, conversations, mooncake

from kvstore.hashing import Naming, block_hashes, pack_hashes
from kvstore.kv_account import KvAccount
from kvstore.kv_feed import KvFeed
from kvstore.kv_messages import Change, Delta, SnapshotPart
from kvstore.prefix_index import PrefixIndex
from router.ledger import PickLedger
from router.policy import affinity, prefix_aware
from router.types import Candidate

VERIFIERS, BLOCKS, BLOCK = 64, 1_000_000, 16
ENGINES, SIM_BLOCK, CAPACITY, RATE = 8, 32, 2500, 4000
LOADS = (0.5, 0.7, 0.9)
HIT_RATE = Metric("hit rate", "0-1", higher_is_better=True)
MEAN = Metric("mean TTFT", "ms", higher_is_better=False)
P99 = Metric("P99 TTFT", "ms", higher_is_better=False)
HOTTEST = Metric("hottest", "x mean", higher_is_better=False)


def micro(rounds: int) -> None:
    """Part (a)."""
    rng = random.Random(0)
    names = [f"verifier-{n}" for n in range(VERIFIERS)]
    prompts = {n: np.arange(n, dtype=np.int32) for n in (1000, 8000, 100_000)}
    chains = {n: block_hashes(7, tokens, BLOCK) for n, tokens in prompts.items()}
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(2 * BLOCKS)
    each = BLOCKS // VERIFIERS
    for place, name in enumerate(names):
        held = {rng.getrandbits(64) for _ in range(each)}
        index.replace(name, {"device": held})
        # Each holds another part of the longest prompt, half of them all of the short ones.
        index.add(name, "device", chains[100_000][: 6250 * (place % 8) // 8 + 10])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    console.print(
        f"  index: {len(index):,} replica-blocks, {used / len(index):.0f} bytes each "
        f"(estimate shown as a metric: {index.nbytes / len(index):.0f})"
    )
    for length, tokens in prompts.items():
        hash_s, decide_s = [], []
        for _ in range(rounds):
            started_s = time.perf_counter()
            chain = block_hashes(7, tokens, BLOCK)
            hashed_s = time.perf_counter()
            decide(index, names, chain, length)
            hash_s.append(hashed_s - started_s)
            decide_s.append(time.perf_counter() - hashed_s)
        console.print(
            f"  {length:>7,} tokens: hashing {1e3 * statistics.median(hash_s):.2f} ms, "
            f"deciding {1e3 * statistics.median(decide_s):.2f} ms (medians of {rounds})"
        )
    _events(names[0], rng)
    _account(rng)


def _account(rng: random.Random) -> None:
    """The verifier's side: the engine's events into names, and the map that takes."""
    # Its map was enlarged a moment ago: the most that it takes.
    encode, batches, blocks = msgspec.msgpack.encode, [], 107_000
    for number in range(blocks // 50):
        hashes = [rng.getrandbits(64) for _ in range(50)]
        stored = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": [rng.randrange(50_000) for _ in range(50 * BLOCK)],
            "block_size": BLOCK,
            "medium": "GPU",
            "extra_keys": [["salt"], *[None] * 49],
        }
        batches.append(encode([float(number), [stored], 0]))
    account = KvAccount(Naming("weights", BLOCK))
    started_s = time.perf_counter()
    for number, batch in enumerate(batches):
        account.take(number, batch)
        account.delta()
    rate = blocks / (time.perf_counter() - started_s)
    account = KvAccount(Naming("weights", BLOCK))
    gc.collect()
    tracemalloc.start()
    for number, batch in enumerate(batches):
        account.take(number, batch)
        account.delta()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    console.print(
        f"  account: {rate:,.0f} block events/s beside an engine, {used / blocks:.0f} bytes a block"
    )


def decide(index: PrefixIndex, names: Sequence[str], chain: Sequence[int], tokens: int) -> str:
    """What `PrefixRouting.decide` does with a chain, apart from loads."""
    ledger = PickLedger()
    matches = {name: index.match(name, chain) for name in names}
    key = chain[min(4, len(chain)) - 1]
    candidates = [
        Candidate(
            ledger.load(name, 0, 0.0, 1.0),
            matches[name].device_blocks,
            coming_blocks=ledger.coming_blocks(name, chain, 1.0),
            affinity=affinity(name, key),
        )
        for name in names
    ]
    ranking, _ = prefix_aware(candidates, tokens, BLOCK)
    best = ranking.replica_ids[0]
    index.confirm(best, chain, matches[best])
    return best


def _events(name: str, rng: random.Random) -> None:
    index = PrefixIndex(2 * BLOCKS)
    feed = KvFeed(index, name)
    feed.take(SnapshotPart(1, 0, 0, 1, "device", b""), 0.0)
    deltas, held = [], list[int]()
    for number in range(2000):
        new = [rng.getrandbits(64) for _ in range(64)]
        gone, held = held[:48], held[48:] + new
        change = Change("device", pack_hashes(new), pack_hashes(gone))
        deltas.append(Delta(1, number + 1, [change]))
    started_s = time.perf_counter()
    for delta in deltas:
        feed.take(delta, 0.0)
    rate = 2000 * (64 + 48) / (time.perf_counter() - started_s)
    console.print(f"  events: {rate:,.0f} blocks/s taken in by one router")


def simulate(policy: str, trace: Sequence[Arrival], seed: int) -> dict[str, float]:
    """Part (b): one policy over one trace."""
    rng = random.Random(seed)
    engines = [
        MockEngine(f"v{n}", Speed(RATE * rng.uniform(0.85, 1.15)), CAPACITY, SIM_BLOCK)
        for n in range(ENGINES)
    ]
    router: Policy = POLICIES[policy]([engine.name for engine in engines], SIM_BLOCK, seed)
    simulation = Simulation(engines, router.pick, router.tell, router.ended)
    simulation.run(trace)
    ttft_s = [request.first_token_s - request.came_at_s for request in simulation.requests]
    shares = list(simulation.picks.values())
    return {
        HIT_RATE.name: sum(engine.cached_tokens for engine in engines)
        / sum(engine.prompt_tokens for engine in engines),
        MEAN.name: 1e3 * statistics.mean(ttft_s),
        P99.name: 1e3 * float(np.quantile(ttft_s, 0.99)),
        HOTTEST.name: max(shares) / (sum(shares) / ENGINES),
    }


def capacity_of(trace: Sequence[Arrival]) -> float:
    """Prompt tokens a second that are a load of 1: what the engines can do with what turns find."""
    slow = at_load(trace, 0.3 * ENGINES * RATE, 99)
    hit_rate = simulate("round robin", slow, 99)[HIT_RATE.name]
    console.print(f"  capacity is counted with the hit rate of round robin, {hit_rate:.2f}")
    return ENGINES * RATE / (1 - hit_rate)


def simulation(quick: bool, repetitions: int, only: Sequence[str]) -> None:
    """Part (b): all policies, three loads of Mooncake's trace, and of made-up conversations."""
    works = {"mooncake": mooncake(SIM_BLOCK)}
    if not quick:
        works["talks"] = conversations(99, 4000, SIM_BLOCK)
    capacity = {work: capacity_of(trace) for work, trace in works.items()}
    cells = [f"{work} {load}" for work in works for load in LOADS]
    bench = Bench("router", list(only or POLICIES), cells, [HIT_RATE, MEAN, P99, HOTTEST])

    def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
        work, load = cell.split()
        trace = at_load(works[work], float(load) * capacity[work], repetition)
        return simulate(arm, trace, repetition)

    bench.run(measure, repetitions)
    bench.finish([])


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="seeds of (b) and (c); default 3, quick 1")
    parser.add_argument("--only", nargs="*", default=[], choices=POLICIES, help="of part (b)")
    parser.add_argument("--parts", default="abc", help="some of abcd; default abc")
    parser.add_argument("--vllm-router", help="its path, for part (c); default: from PATH")
    args = parser.parse_args()
    repetitions = args.repetitions or (1 if args.quick else 3)
    if "a" in args.parts:
        micro(50 if args.quick else 300)
    if "b" in args.parts:
        simulation(args.quick, repetitions, args.only)
    if "c" in args.parts:
        http(args.quick, repetitions, capacity_of(mooncake(SIM_BLOCK)), args.vllm_router)
    if "d" in args.parts:
        from router_real import real

        real(quick=args.quick)


if __name__ == "__main__":
    main()
