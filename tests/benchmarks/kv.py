"""What fetching KV blocks is worth against computing them again.

    make bench-kv        QUICK=1 make bench-kv

Three engines of SmolLM2-135M (bfloat16) on this machine, one LMCache server and one Redis before
which nothing stands. A prompt of new random tokens is computed once, and stored in LMCache's
memory and in Redis; then each arm answers it once, with one token, its own cache emptied before:

    recompute        an engine that shares nothing, twice (A/A)
    local cache      the engine that computed it, cache not emptied
    memory, forced   fetches whatever is found, from LMCache's memory
    Redis, forced    the same with LMCache's memory emptied: through it from Redis
    gate, memory     `kv.fetch: auto` with the blocks in memory; compared with the better one of
                     recomputing and fetching
    gate, Redis      the same with the blocks in Redis alone
    computed, stored the engine that computed it first: what sharing costs who is first

Then Redis is stopped: it keeps its connections and answers nothing, and new prompts are computed
by the engine that shares nothing and by the one with the gate. What memory and loopback could do
at best is measured in the same run.
"""

import argparse
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3
from harness import Bench, Comparison, Metric, console
from kv_engine import Engine, Timed

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lmcache_server import LmcacheServer
from redis_server import RedisServer

from cluster.models import resolve_source
from configs.sections.places import FoldersConfig

BASE = "builtin:smollm2-135m-instruct"
LENGTHS = (256, 1024, 2048, 4096)
CHUNK, BLOCK, STEP_TOKENS = 256, 32, 2048
TOKEN_BYTES = 30 * 2 * 3 * 64 * 2
"""Of KV a token: layers, keys and values, heads, their size, bfloat16."""
VOCABULARY = 49152
RECOMPUTE, AGAIN, LOCAL = "recompute", "recompute again", "local cache"
MEMORY, REDIS = "memory, forced", "Redis, forced"
GATE_MEMORY, GATE_REDIS = "gate, memory", "gate, Redis"
GATE_NEW, ANSWERS, IS_SILENT = "gate, new prompt", "Redis answers", "Redis is silent"
STORED = "computed, stored"
ARMS = (RECOMPUTE, AGAIN, LOCAL, MEMORY, REDIS, GATE_MEMORY, GATE_REDIS, STORED)
TTFT = Metric("TTFT", "ms", higher_is_better=False)
LOOKUP = Metric("of this, look-up", "ms", higher_is_better=False)
FASTER, NEAR = 1 / 1.5, 1.1
BACK = "tier=redis state=back"
MIB = 1 << 20
PATIENCE_S = 60.0


class House:
    """Redis, LMCache, the three engines, and what was stored last.

    Args:
        folder: For logs.
    """

    def __init__(self, folder: Path) -> None:
        self._redis = RedisServer(folder)
        self._redis.start()
        self.lmcache = LmcacheServer(
            folder,
            ({"kind": "redis"},),
            self._redis,
            kv={"chunk_size": CHUNK, "shortest_fetch": CHUNK, "wait_max_ms": 1000.0},
            dram_gib=1.0,
        )
        self.lmcache.start()
        model = Path(resolve_source(BASE, FoldersConfig().models))
        common = {
            "dtype": "bfloat16",
            "enforce_eager": True,
            "block_size": BLOCK,
            "kv_cache_memory_bytes": 512 * MIB,
            "max_model_len": LENGTHS[-1] + 2 * BLOCK,
            "max_num_batched_tokens": STEP_TOKENS,
            "max_num_seqs": 4,
        }
        cores = os.cpu_count() or 1
        shared: dict[str, dict[str, Any]] = {
            "always": {"fetch": "always", "wait_max_ms": 20000},
            "auto": {"fetch": "auto"},
        }
        self.plain = Engine(model, folder / "plain.log", cores, **common)
        self.always, self.auto = (
            Engine(
                model,
                folder / f"{name}.log",
                cores,
                **common,
                **self.lmcache.args_with(**kv),
            )
            for name, kv in shared.items()
        )
        self._is_in_memory = False

    def close(self) -> None:
        """Ends everything."""
        for engine in (self.plain, self.always, self.auto):
            engine.__exit__()
        self.lmcache.kill()
        self._redis.kill()

    def store(self, prompt: list[int]) -> Timed:
        """Computes a prompt, and waits until memory and Redis hold it alone."""
        self._settle()
        with self._redis.client() as client:
            client.flushall()
        self.lmcache.empty_memory()
        before = self.lmcache.tier("redis").counts.get("stored", 0)
        timed = self.always.ask(prompt)
        chunks = len(prompt) // CHUNK
        wait_for(lambda: self.lmcache.tier("redis").counts.get("stored", 0) >= before + chunks)
        self._is_in_memory = True
        return timed

    def measure(self, arm: str, prompt: list[int]) -> Timed:
        """Answers a stored prompt the way of an arm."""
        if arm in (RECOMPUTE, AGAIN):
            return self._warm(self.plain).ask(prompt)
        if arm == LOCAL:
            self.always.ask(prompt, forget=False)
            return self.always.ask(prompt, forget=False)
        self._place(prompt, in_memory=arm in (MEMORY, GATE_MEMORY))
        self._is_in_memory = True
        engine = self.always if arm in (MEMORY, REDIS) else self.auto
        return self._warm(engine).ask(prompt)

    def _warm(self, engine: Engine) -> Engine:
        """One that has just worked, as each does that is asked all the time."""
        engine.ask(random.sample(range(VOCABULARY), 2 * BLOCK))
        return engine

    def _settle(self) -> None:
        """Waits until nothing is on its way to Redis."""
        seen = -1
        while seen != (stored := self.lmcache.tier("redis").counts.get("stored", 0)):
            seen = stored
            time.sleep(0.3)

    def _place(self, prompt: list[int], in_memory: bool) -> None:
        """Has a prompt's blocks in LMCache's memory, or in Redis alone."""
        if in_memory and not self._is_in_memory:
            assert self.always.ask(prompt).cached, "Redis has lost what was stored"
        if not in_memory:
            self.lmcache.empty_memory()
        self._is_in_memory = in_memory

    def silence(self, is_silent: bool) -> None:
        """Redis keeps its connections and says nothing, or goes on."""
        self._redis.signal(signal.SIGSTOP if is_silent else signal.SIGCONT)

    def comes_back(self) -> float:
        """Seconds until the tier is used again, with a request every half a second."""
        began_s, before = time.monotonic(), self.lmcache.log.count(BACK)
        while self.lmcache.log.count(BACK) == before:
            self.auto.ask(random.sample(range(VOCABULARY), CHUNK))
            time.sleep(0.5)
        return time.monotonic() - began_s


def new_prompt(length: int, seed: int) -> list[int]:
    """Random tokens that no other prompt begins with."""
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def wait_for(what: Callable[[], bool]) -> None:
    """Until it is so."""
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > until_s:
            raise RuntimeError("LMCache or Redis is not as it should be")
        time.sleep(0.05)


def limits() -> list[str]:
    """What moving the blocks of the longest prompt takes at best: bytes a second."""
    size = LENGTHS[-1] * TOKEN_BYTES
    source, target = bytearray(os.urandom(size)), bytearray(size)

    def copy() -> None:
        target[:] = source

    def hash_it() -> None:
        blake3(source).digest()

    def loopback() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = threading.Thread(target=_send, args=(listener.getsockname()[1], source))
            sender.start()
            near, _ = listener.accept()
            with near:
                view, got = memoryview(target), 0
                while got < size:
                    got += near.recv_into(view[got:])
            sender.join()

    told = []
    for name, move in (("memory copy", copy), ("loopback", loopback), ("BLAKE3", hash_it)):
        times = []
        for _ in range(5):
            began_s = time.perf_counter()
            move()
            times.append(time.perf_counter() - began_s)
        told.append(f"{name}: {size / statistics.median(times) / 1e6:,.0f} MB/s")
    return told


def _send(port: int, data: bytearray) -> None:
    with socket.create_connection(("127.0.0.1", port)) as out:
        out.sendall(data)


def rates(bench: Bench) -> list[str]:
    """Bytes of a prompt, and how fast they came: from memory by the whole of TTFT, so that it is
    a lower bound; from Redis into memory by the time of the look-up, which is that.
    """
    told = []
    for length in LENGTHS:
        cell, size = cell_of(length), length * TOKEN_BYTES

        memory_ms = statistics.median(bench.values[(MEMORY, cell, TTFT.name)])
        redis_ms = statistics.median(bench.values[(REDIS, cell, LOOKUP.name)])
        told.append(
            f"{cell}: {size / 1e6:.1f} MB; from memory at least {size / memory_ms / 1e3:,.0f} MB/s,"
            f" from Redis {size / redis_ms / 1e3:,.0f} MB/s"
        )
    return told


def better(bench: Bench, cell: str, arms: tuple[str, ...]) -> str:
    """The arm with the lowest median."""
    return min(arms, key=lambda arm: statistics.median(bench.values[(arm, cell, TTFT.name)]))


def claims(bench: Bench) -> list[Comparison]:
    """What is to be shown."""
    claimed = [
        Comparison(arm, RECOMPUTE, AGAIN, TTFT, FASTER, (bench.cells[-1],))
        for arm in (MEMORY, REDIS)
    ]
    for cell in bench.cells:
        for gate, forced in ((GATE_MEMORY, MEMORY), (GATE_REDIS, REDIS)):
            best = better(bench, cell, (RECOMPUTE, forced))
            claimed.append(Comparison(gate, best, AGAIN, TTFT, NEAR, (cell,), RECOMPUTE))
    return claimed


def silent(house: House, repetitions: int) -> None:
    """What a Redis that went silent costs prompts that nobody has computed."""
    numbers = iter(range(10**6, 2 * 10**6))
    bench = Bench("kv-silent", (RECOMPUTE, AGAIN, GATE_NEW), (ANSWERS, IS_SILENT), (TTFT,))

    def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
        engine = house.auto if arm == GATE_NEW else house.plain
        return {TTFT.name: 1e3 * engine.ask(new_prompt(1024, next(numbers))).ttft_s}

    bench.cells = (ANSWERS,)
    bench.run(measure, repetitions)
    house.silence(True)
    try:
        bench.cells = (IS_SILENT,)
        bench.run(measure, repetitions)
    finally:
        house.silence(False)
    back_s = house.comes_back()
    bench.cells = (ANSWERS, IS_SILENT)
    worst = max(bench.values[(GATE_NEW, IS_SILENT, TTFT.name)])
    bench.finish(
        [Comparison(GATE_NEW, RECOMPUTE, AGAIN, TTFT, NEAR)],
        [f"the slowest took {worst:.0f} ms; Redis is used again {back_s:.1f} s after it is back"],
    )


def cell_of(length: int) -> str:
    """As it is called in tables."""
    return f"{length} tokens"


def warm_up(house: House, rounds: int) -> None:
    """Each engine computes and fetches prompts of each length, so that the gate has measured."""
    for round_ in range(rounds):
        for length in LENGTHS:
            prompt = new_prompt(length, -1 - round_ * 10 - LENGTHS.index(length))
            house.auto.ask(new_prompt(length, -100 - round_ * 10 - LENGTHS.index(length)))
            house.store(prompt)
            for arm in (RECOMPUTE, MEMORY, REDIS, GATE_MEMORY, GATE_REDIS):
                house.measure(arm, prompt)


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 3 minutes")
    parser.add_argument("--repetitions", type=int, help="default 7, quick 1")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    house = House(folder)
    prompts: dict[tuple[str, int], list[int]] = {}
    fetched: dict[tuple[str, str], list[bool]] = {}

    def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
        key = (cell, repetition)
        if key not in prompts:
            prompts[key] = new_prompt(int(cell.split()[0]), 1 + 100 * len(prompts))
            stored[key] = house.store(prompts[key])
        timed = stored[key] if arm == STORED else house.measure(arm, prompts[key])
        found = timed.cached >= len(prompts[key]) - BLOCK
        if found is not (arm in (LOCAL, MEMORY, REDIS)) and "gate" not in arm:
            raise RuntimeError(f"{arm}, {cell}: {timed.cached} tokens were found")
        if "gate" in arm:
            fetched.setdefault((arm, cell), []).append(found)
        times = {TTFT.name: 1e3 * timed.ttft_s}
        return times | ({LOOKUP.name: 1e3 * timed.lookup_s} if timed.lookup_s else {})

    stored: dict[tuple[str, int], Timed] = {}
    try:
        console.print("  three engines start, and compute and fetch")
        warm_up(house, 1 if args.quick else 2)
        bench = Bench("kv", ARMS, [cell_of(length) for length in LENGTHS], [TTFT, LOOKUP])
        bench.run(measure, args.repetitions or (1 if args.quick else 7))
        last = house.auto.ask(new_prompt(CHUNK, 0)).sharing
        bench.finish(
            claims(bench),
            [
                *limits(),
                *rates(bench),
                f"the gate decided {last['decided']}, and of its look-ups came {last['outcomes']}",
                f"it goes by {last['compute']} (computing), {last['load']} (from memory), "
                f"{last['tiers']}",
                *(
                    f"{arm}, {cell}: fetched {sum(times)} of {len(times)}"
                    for (arm, cell), times in sorted(fetched.items())
                ),
            ],
        )
        silent(house, args.repetitions or (2 if args.quick else 7))
    finally:
        house.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
