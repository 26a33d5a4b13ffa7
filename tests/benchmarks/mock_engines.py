"""Verifiers in simulated time: real eviction, real events, a prefill rate nobody is told.

An engine computes one prompt after the other, keeps blocks by least recent use, and tells of
them and of its load as a verifier's relay does. Decoding is not simulated but for the requests
that are counted as there until they end.
"""

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstore.hashing import pack_hashes
from kvstore.kv_messages import Change, Delta, LoadReport, SnapshotPart
from replicas.verifier.prefill_meter import PrefillMeter

DECODE_S_PER_TOKEN = 0.02
STEP_S = 0.01


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: when, how long, which blocks, how long an answer."""

    at_s: float
    prompt_tokens: int
    chain: tuple[int, ...]
    output_tokens: int


@dataclass
class MockEngine:
    """One verifier.

    Attributes:
        name: Of the replica.
        tokens_per_s: How fast it prefills.
        capacity: Blocks that it can hold.
        block_tokens: Tokens of one block.
    """

    name: str
    tokens_per_s: float
    capacity: int
    block_tokens: int
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    queue: deque[tuple[int, Arrival]] = field(default_factory=deque)
    meter: PrefillMeter = field(default_factory=PrefillMeter)
    in_flight: int = 0
    busy: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _added: set[int] = field(default_factory=set)
    _removed: set[int] = field(default_factory=set)
    _sequence: int = 0

    def cached_blocks(self, chain: Sequence[int]) -> int:
        """Leading blocks that it holds."""
        count = 0
        for block in chain:
            if block not in self.held:
                break
            count += 1
        return count

    def compute(self, arrival: Arrival) -> float:
        """Prefills a prompt: how long it takes, seconds. Blocks are held when it begins."""
        found = min(
            self.cached_blocks(arrival.chain), (arrival.prompt_tokens - 1) // self.block_tokens
        )
        cached = found * self.block_tokens
        self.prompt_tokens += arrival.prompt_tokens
        self.cached_tokens += cached
        for block in reversed(arrival.chain):  # The end of a prefix is the first to go.
            if block in self.held:
                self.held.move_to_end(block)
            else:
                self.held[block] = None
                self._added.add(block)
                self._removed.discard(block)
        while len(self.held) > self.capacity:
            gone, _ = self.held.popitem(last=False)
            self._added.discard(gone)
            self._removed.add(gone)
        return STEP_S + (arrival.prompt_tokens - cached) / self.tokens_per_s

    def snapshot(self) -> SnapshotPart:
        """What a router gets that has nothing."""
        return SnapshotPart(1, self._sequence, 0, 1, "device", pack_hashes(self.held))

    def delta(self, now_s: float) -> Delta:
        """What changed, and the load."""
        changes = []
        if self._added or self._removed:
            changes = [Change("device", pack_hashes(self._added), pack_hashes(self._removed))]
            self._sequence += 1
            self._added, self._removed = set(), set()
        cost = self.meter.cost()
        load = LoadReport(
            self.in_flight,
            self.meter.queued_tokens,
            cost.base_s,
            cost.s_per_token,
            self.prompt_tokens,
            self.cached_tokens,
            now_s,
        )
        return Delta(1, self._sequence, changes, load)


class Simulation:
    """Runs a trace over engines; `pick` says where each request goes.

    Args:
        engines: The verifiers.
        tell: Called four times a second of simulated time with (engine, now).
        pick: Called for each arrival with (arrival, now); returns an engine's name.
    """

    def __init__(self, engines, tell, pick, period_s: float = 0.25) -> None:  # type: ignore[no-untyped-def]
        self.engines = {engine.name: engine for engine in engines}
        self._tell, self._pick, self._period_s = tell, pick, period_s
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self.ttft_s: list[float] = []
        self.picks: dict[str, int] = dict.fromkeys(self.engines, 0)

    def run(self, trace: Sequence[Arrival]) -> None:
        """From the first arrival to the last first token."""
        for arrival in trace:
            self._at(arrival.at_s, "arrives", arrival)
        last_s = trace[-1].at_s
        self._at(0.0, "tell", None)
        waiting = len(trace)
        while waiting:
            now_s, _, kind, what = heapq.heappop(self._events)
            if kind == "tell":
                for engine in self.engines.values():
                    self._tell(engine, now_s)
                if waiting or now_s < last_s:
                    self._at(now_s + self._period_s, "tell", None)
            elif kind == "arrives":
                name = self._pick(what, now_s)
                self.picks[name] += 1
                engine = self.engines[name]
                engine.in_flight += 1
                engine.meter.started(str(id(what)), what.prompt_tokens, now_s)  # type: ignore[attr-defined]
                engine.queue.append((id(what), what))  # type: ignore[arg-type]
                self._next(engine, now_s)
            elif kind == "first token":
                engine, arrival, cached = what  # type: ignore[misc]
                engine.busy = False
                engine.meter.first_token(str(id(arrival)), arrival.prompt_tokens, cached, now_s)
                self.ttft_s.append(now_s - arrival.at_s)
                self._at(now_s + arrival.output_tokens * DECODE_S_PER_TOKEN, "ends", engine)
                waiting -= 1
                self._next(engine, now_s)
            else:
                what.in_flight -= 1  # type: ignore[attr-defined]

    def _next(self, engine: MockEngine, now_s: float) -> None:
        if engine.busy or not engine.queue:
            return
        _, arrival = engine.queue.popleft()
        engine.busy = True
        before = engine.cached_tokens
        took_s = engine.compute(arrival)
        cached = engine.cached_tokens - before
        self._at(now_s + took_s, "first token", (engine, arrival, cached))

    def _at(self, at_s: float, kind: str, what: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, kind, what))


def conversations(seed: int, count: int, block_tokens: int) -> list[Arrival]:
    """Multi-turn conversations over a few shared system prompts; times are left at 0.

    Args:
        seed: Of everything random.
        count: Requests.
        block_tokens: Tokens of one block.
    """
    rng = random.Random(seed)
    next_block = iter(range(1, 1 << 40))
    systems = [[next(next_block) for _ in range(rng.randrange(10, 60))] for _ in range(12)]
    open_talks: list[list[int]] = []
    arrivals = []
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
        arrivals.append(Arrival(0.0, tokens, tuple(talk), rng.randrange(20, 200)))
        talk += [next(next_block) for _ in range(rng.randrange(1, 6))]  # the answer
    return arrivals
