"""Verifiers in simulated time: real eviction, real events, a prefill rate nobody is told.

An engine goes step by step, as vLLM does: each step decodes one token of every running request
and spends the rest of its budget on prompts, first come, first served, in chunks. Blocks are
kept by least recent use and are there for others once they are computed. What it tells, and
when, is what a verifier's relay tells: changes as they come, its load four times a second at
least. `Simulation` runs engines on one clock; a benchmark over sockets may run them on its own.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from traces import Arrival

from kvstore.hashing import pack_hashes
from kvstore.kv_messages import Change, Delta, LoadReport, SnapshotPart
from replicas.verifier.prefill_meter import PrefillMeter

SIGN_OF_LIFE_S = 0.25


@dataclass(frozen=True)
class Speed:
    """What an engine's step takes: base_s + row_s * decoding rows + prompt tokens / tokens_per_s.

    Attributes:
        budget: Tokens of one step at most.
    """

    tokens_per_s: float
    base_s: float = 0.01
    row_s: float = 0.0001
    budget: int = 512


@dataclass
class Request:
    """One request in an engine.

    Attributes:
        arrival: What was asked.
        came_at_s: When it came to the engine.
        cached_tokens: Of its prompt, found when it was begun; None before.
        computed_tokens: Of its prompt, cached ones included.
        first_token_s: When its first token came.
    """

    arrival: Arrival
    came_at_s: float
    cached_tokens: int | None = None
    computed_tokens: int = 0
    first_token_s: float = 0.0


@dataclass
class MockEngine:
    """One verifier. `begin_step` and `end_step` alternate; time is the caller's.

    Attributes:
        name: Of the replica.
        speed: How fast it is.
        capacity: Blocks that it can hold.
        block_tokens: Tokens of one block.
        held: Blocks that it holds, the least recently used first.
        in_flight: Requests that are not over.
        is_busy: Whether a step is under way.
    """

    name: str
    speed: Speed
    capacity: int
    block_tokens: int
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    meter: PrefillMeter = field(default_factory=PrefillMeter)
    in_flight: int = 0
    is_busy: bool = False
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    _prompts: deque[Request] = field(default_factory=deque)
    _decoding: list[tuple[int, int, Request]] = field(default_factory=list)
    _chunks: list[tuple[Request, int]] = field(default_factory=list)
    _steps: int = 0
    _added: set[int] = field(default_factory=set)
    _removed: set[int] = field(default_factory=set)
    _sequence: int = 0

    @property
    def has_work(self) -> bool:
        """Whether another step would do anything."""
        return bool(self._prompts or self._decoding)

    @property
    def has_changed(self) -> bool:
        """Whether it holds other blocks than it told."""
        return bool(self._added or self._removed)

    def add(self, arrival: Arrival, now_s: float) -> Request:
        """A request comes in."""
        request = Request(arrival, now_s)
        self.in_flight += 1
        self.requests += 1
        self.meter.started(str(id(request)), arrival.prompt_tokens, now_s)
        self._prompts.append(request)
        return request

    def begin_step(self) -> float:
        """Plans a step; how long it takes, seconds."""
        left = self.speed.budget - len(self._decoding)
        for request in self._prompts:
            if left <= 0:
                break
            if request.cached_tokens is None:
                self._find_cached(request)
            chunk = min(left, request.arrival.prompt_tokens - request.computed_tokens)
            self._chunks.append((request, chunk))
            left -= chunk
        self.is_busy = True
        speed = self.speed
        computed = sum(chunk for _, chunk in self._chunks)
        return speed.base_s + speed.row_s * len(self._decoding) + computed / speed.tokens_per_s

    def end_step(self, now_s: float) -> tuple[list[Request], list[Request]]:
        """Carries the step out: who got a first token, and who is done."""
        self.is_busy = False
        self._steps += 1
        done = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            done.append(heapq.heappop(self._decoding)[2])
        first = [request for request, chunk in self._chunks if self._computed(request, chunk)]
        self._chunks.clear()
        for request in first:
            self._prompts.popleft()
            self._first_token(request, now_s)
            ends_at = self._steps + request.arrival.output_tokens - 1
            if ends_at > self._steps:
                heapq.heappush(self._decoding, (ends_at, id(request), request))
            else:
                done.append(request)
        for request in done:
            self.in_flight -= 1
            self._touch(reversed(request.arrival.chain))  # The end of a prefix goes first.
        return first, done

    def snapshot(self) -> SnapshotPart:
        """What a router gets that has nothing; ask for `delta` before."""
        return SnapshotPart(1, self._sequence, 0, 1, "device", pack_hashes(self.held))

    def take_changes(self) -> tuple[set[int], set[int]]:
        """Blocks that came and that went since the last call."""
        changes = self._added, self._removed
        self._added, self._removed = set(), set()
        return changes

    def delta(self, now_s: float) -> Delta:
        """What changed since the delta before, and the load."""
        changes = []
        if self.has_changed:
            added, removed = self.take_changes()
            changes = [Change("device", pack_hashes(added), pack_hashes(removed))]
            self._sequence += 1
        return Delta(1, self._sequence, changes, self.load_report(now_s))

    def load_report(self, now_s: float) -> LoadReport:
        """How busy it is, as its verifier would say."""
        cost = self.meter.cost()
        return LoadReport(
            self.in_flight,
            self.meter.queued_tokens,
            cost.base_s,
            cost.s_per_token,
            self.prompt_tokens,
            self.cached_tokens,
            now_s,
            waiting=self.meter.waiting,
        )

    def _find_cached(self, request: Request) -> None:
        prompt, found = request.arrival.prompt_tokens, 0
        for block in request.arrival.chain[: (prompt - 1) // self.block_tokens]:
            if block not in self.held:
                break
            found += 1
        self._touch(reversed(request.arrival.chain[:found]))
        request.cached_tokens = request.computed_tokens = found * self.block_tokens
        self.prompt_tokens += prompt
        self.cached_tokens += request.cached_tokens

    def _computed(self, request: Request, chunk: int) -> bool:
        """Whether a prompt is all computed after another chunk of it."""
        before = request.computed_tokens // self.block_tokens
        request.computed_tokens += chunk
        self._touch(request.arrival.chain[before : request.computed_tokens // self.block_tokens])
        return request.computed_tokens >= request.arrival.prompt_tokens

    def _first_token(self, request: Request, now_s: float) -> None:
        request.first_token_s = now_s
        self.meter.first_token(
            str(id(request)), request.arrival.prompt_tokens, request.cached_tokens or 0, now_s
        )

    def _touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self.held:
                self.held.move_to_end(block)
                continue
            self.held[block] = None
            if block in self._removed:
                self._removed.discard(block)
            else:
                self._added.add(block)
        while len(self.held) > self.capacity:
            gone, _ = self.held.popitem(last=False)
            if gone in self._added:
                self._added.discard(gone)
            else:
                self._removed.add(gone)


class Simulation:
    """Runs a trace over engines in simulated time.

    Args:
        engines: The verifiers.
        pick: Called for each arrival with (arrival, now); returns an engine's name.
        tell: Called with (engine, now) as a relay would speak.
        ended: Called with (engine's name, now) when a request is over.

    Attributes:
        requests: In the order in which they came.
        picks: Requests by engine.
    """

    def __init__(
        self,
        engines: Sequence[MockEngine],
        pick: Callable[[Arrival, float], str],
        tell: Callable[[MockEngine, float], None],
        ended: Callable[[str, float], None],
    ) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.requests: list[Request] = []
        self.picks: dict[str, int] = dict.fromkeys(self.engines, 0)
        self._pick, self._tell, self._ended = pick, tell, ended
        self._events: list[tuple[float, int, Arrival | MockEngine | None]] = []
        self._count = 0

    def run(self, trace: Sequence[Arrival]) -> None:
        """Until the last request is over."""
        for arrival in trace:
            self._at(arrival.at_s, arrival)
        self._at(0.0, None)
        left = len(trace)
        while left:
            now_s, _, what = heapq.heappop(self._events)
            if what is None:
                for engine in self.engines.values():
                    self._tell(engine, now_s)
                self._at(now_s + SIGN_OF_LIFE_S, None)
            elif isinstance(what, Arrival):
                self._arrives(what, now_s)
            else:
                left -= self._step_ends(what, now_s)

    def _arrives(self, arrival: Arrival, now_s: float) -> None:
        name = self._pick(arrival, now_s)
        self.picks[name] += 1
        engine = self.engines[name]
        self.requests.append(engine.add(arrival, now_s))
        if not engine.is_busy:
            self._at(now_s + engine.begin_step(), engine)

    def _step_ends(self, engine: MockEngine, now_s: float) -> int:
        _, done = engine.end_step(now_s)
        for _ in done:
            self._ended(engine.name, now_s)
        if engine.has_changed:
            self._tell(engine, now_s)
        if engine.has_work:
            self._at(now_s + engine.begin_step(), engine)
        return len(done)

    def _at(self, at_s: float, what: Arrival | MockEngine | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, what))
