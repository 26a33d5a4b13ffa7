"""What the prefix-aware router costs, and what it is worth.

    make bench-router          QUICK=1 make bench-router

Three parts: (a) the index and the decision by themselves, 64 verifiers and a million blocks;
(b) policies side by side in simulated time over eight mock engines with real eviction and
hidden prefill rates; (c), only with `--real`, two verifiers of this machine under each policy.
"""

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from harness import Bench, Metric, console
from mock_engines import Arrival, MockEngine, Simulation, conversations

from kvstore.hashing import block_hashes, pack_hashes
from kvstore.held_blocks import Naming
from kvstore.kv_account import KvAccount
from kvstore.kv_feed import KvFeed
from kvstore.kv_messages import Change, Delta, SnapshotPart
from kvstore.prefix_index import PrefixIndex
from router.ledger import PickLedger
from router.policy import affinity, least_loaded, prefix_aware
from router.types import Candidate, Prefill

VERIFIERS, BLOCKS, BLOCK = 64, 1_000_000, 16
ENGINES, SIM_BLOCK, CAPACITY = 8, 32, 2500
POLICIES = ("prefix_aware", "least_loaded", "round_robin", "hashing only")


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
    encode, batches, blocks = msgspec.msgpack.encode, [], 100_000
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
    deltas, held = [], []
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
        MockEngine(f"v{n}", 4000 * rng.uniform(0.85, 1.15), CAPACITY, SIM_BLOCK)
        for n in range(ENGINES)
    ]
    names = [engine.name for engine in engines]
    index, ledger = PrefixIndex(1_000_000), PickLedger()
    feeds = {name: KvFeed(index, name) for name in names}
    turn = 0

    def tell(engine: MockEngine, now_s: float) -> None:
        feed = feeds[engine.name]
        delta = engine.delta(now_s)
        if feed.needs_resync:
            feed.take(engine.snapshot(), now_s)
        feed.take(delta, now_s)

    def load_of(name: str, now_s: float):  # type: ignore[no-untyped-def]
        report = feeds[name].load
        if report is None:
            return ledger.load(name, 0, 0.0, now_s)
        return ledger.load(name, report.in_flight, report.at_s, now_s, report.queued_tokens)

    def pick(arrival: Arrival, now_s: float) -> str:
        nonlocal turn
        turn += 1
        if policy == "round_robin":
            return names[turn % ENGINES]
        if policy == "least_loaded":
            best = least_loaded([load_of(name, now_s) for name in names]).replica_ids[0]
            ledger.picked(best, now_s)
            return best
        chain = arrival.chain
        key = chain[min(4, len(chain)) - 1]
        candidates = []
        for name in names:
            match = index.match(name, chain)
            report = feeds[name].load
            known = report is not None and report.prefill_s_per_token > 0
            candidates.append(
                Candidate(
                    load_of(name, now_s),
                    match.device_blocks if policy == "prefix_aware" else 0,
                    0,
                    ledger.coming_blocks(name, chain, now_s) if policy == "prefix_aware" else 0,
                    Prefill(report.prefill_base_s, report.prefill_s_per_token) if known else None,
                    affinity(name, key),
                )
            )
        ranking, cost = prefix_aware(candidates, arrival.prompt_tokens, SIM_BLOCK)
        best = ranking.replica_ids[0]
        ledger.picked(best, now_s, cost.prefill_tokens if cost else 0, chain)
        return best

    simulation = Simulation(engines, tell, pick)
    simulation.run(trace)
    prompt = sum(engine.prompt_tokens for engine in engines)
    cached = sum(engine.cached_tokens for engine in engines)
    shares = list(simulation.picks.values())
    return {
        "hit rate": cached / prompt,
        "mean TTFT": 1e3 * statistics.mean(simulation.ttft_s),
        "P99 TTFT": 1e3 * float(np.quantile(simulation.ttft_s, 0.99)),
        "hottest": max(shares) / (sum(shares) / ENGINES),
    }


def timed(trace: list[Arrival], load: float, hit_rate: float, seed: int) -> list[Arrival]:
    """Poisson arrivals at a load: offered tokens, less those cached, over what engines compute."""
    rng = random.Random(seed)
    tokens = statistics.mean(arrival.prompt_tokens for arrival in trace) * (1 - hit_rate)
    rate = load * ENGINES * 4000 / tokens
    at_s, placed = 0.0, []
    for arrival in trace:
        at_s += rng.expovariate(rate)
        placed.append(replace(arrival, at_s=at_s))
    return placed


def simulation(requests: int, repetitions: int) -> None:
    """Part (b): all policies, three loads."""
    loads = (0.5, 0.7, 0.9)
    # A load of 1 is what the engines could do if each prompt's prefix were found in one of eight
    # caches taken by turns.
    plain = conversations(99, requests, SIM_BLOCK)
    hit_rate = simulate("round_robin", timed(plain, 0.3, 0.0, 99), 99)["hit rate"]
    console.print(f"  capacity is counted with the hit rate of round robin, {hit_rate:.2f}")
    metrics = [
        Metric("hit rate", "0-1", higher_is_better=True),
        Metric("mean TTFT", "ms", higher_is_better=False),
        Metric("P99 TTFT", "ms", higher_is_better=False),
        Metric("hottest", "x mean", higher_is_better=False),
    ]
    bench = Bench("router", list(POLICIES), [f"load {load}" for load in loads], metrics)

    def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
        load = float(cell.split()[1])
        trace = timed(
            conversations(repetition, requests, SIM_BLOCK), load, hit_rate, 1000 + repetition
        )
        return simulate(arm, trace, repetition)

    bench.run(measure, repetitions)
    bench.finish([])


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="seeds of part (b); default 3, quick 1")
    parser.add_argument("--real", action="store_true", help="part (c), too")
    args = parser.parse_args()
    parts: list[Callable[[], None]] = [
        lambda: micro(50 if args.quick else 300),
        lambda: simulation(
            1500 if args.quick else 4000, args.repetitions or (1 if args.quick else 3)
        ),
    ]
    for part in parts:
        part()
    if args.real:
        from router_real import real

        real(quick=args.quick)


if __name__ == "__main__":
    main()
