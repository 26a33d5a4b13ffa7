"""A fleet of verifiers in simulated time: continuous batching, chunked prefill, bounded KV.

No model runs. A step takes `step_s + sequence_s * sequences + token_s * prompt tokens`; a request
waits for KV room for its prompt and answer, its prompt is computed in chunks beside the running
sequences, and then it gets `tokens_per_step` a step. The router sends each to the verifier with
the fewest requests. A verifier takes `cold_start_s` to start, and one that is let go ends its
requests first; both count as replica-seconds.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cluster.forecast import Work
from kvstore.verifier_report import BatchCounts, VerifierReport

CHUNK_TOKENS = 2048
ENGINE = Work(0.030, 0.001, 0.0003, kv_tokens=200_000, max_sequences=256)
"""Of the simulated engines; the scalers are not told."""


@dataclass(slots=True)
class Request:
    """One request; times are seconds of the simulation, -1 for what did not happen yet.

    One that can wait stands behind all others, and is held to targets of its own.
    """

    at_s: float
    prompt: int
    output: int
    first_s: float = -1.0
    end_s: float = -1.0
    left: int = 0
    can_wait: bool = False
    targets: tuple[float, float] | None = None

    @property
    def ttft_s(self) -> float:
        """To the first token; infinite where it never came."""
        return self.first_s - self.at_s if self.first_s >= 0 else math.inf

    @property
    def tpot_s(self) -> float:
        """Per token after the first; infinite where it did not end."""
        if self.end_s < 0:
            return math.inf
        return (self.end_s - self.first_s) / max(self.output - 1, 1)

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether it met both targets."""
        return self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


@dataclass(slots=True)
class Totals:
    """What a verifier counts, by the names of its report."""

    requests_started: int = 0
    requests_finished: int = 0
    on_time: int = 0
    prefilled_tokens: int = 0
    prompt_squares: float = 0.0
    prompt_tokens: int = 0
    output_tokens: float = 0.0
    steps: int = 0
    sequence_steps: int = 0
    busy_s: float = 0.0
    ttft_count: int = 0
    batch: BatchCounts | None = None

    def of_batch(self, **more: int) -> None:
        """Adds to the counts of requests that can wait."""
        now = self.batch or BatchCounts()
        self.batch = replace(now, **{name: getattr(now, name) + n for name, n in more.items()})


class SimulatedVerifier:
    """One engine."""

    def __init__(self, name: str, cost: Work, started_at_s: float, ready_at_s: float) -> None:
        self.name = name
        self.started_at_s, self.ready_at_s = started_at_s, ready_at_s
        self.leaving = False
        self.firsts: deque[tuple[float, float]] = deque()
        self._cost = cost
        self._now_s = ready_at_s
        self._waiting: deque[Request] = deque()
        self._running: list[tuple[int, int, Request]] = []
        self._admitted: deque[Request] = deque()
        self._held_kv = 0
        self._ends_s = 0.0
        self._doing: list[tuple[Request, int]] | None = None
        self._count = 0
        self.totals = Totals()

    @property
    def requests(self) -> int:
        """In it, running or not."""
        return len(self._waiting) + len(self._admitted) + len(self._running)

    def take(self, request: Request) -> None:
        """A request arrives; the engine has been advanced to its time."""
        if not self.requests:
            self._now_s = max(self._now_s, request.at_s)
        request.left = request.prompt
        behind = 0 if request.can_wait else sum(other.can_wait for other in self._waiting)
        self._waiting.insert(len(self._waiting) - behind, request)
        self.totals.requests_started += 1
        if request.can_wait:
            self.totals.of_batch(started=1)

    def advance(self, until_s: float, targets: tuple[float, float]) -> None:
        """Runs all steps that end by then."""
        while True:
            if self._doing is None:
                if not self.requests:
                    return
                self._begin()
                if self._jump(until_s):
                    continue
            if self._ends_s > until_s:
                return
            self._end(targets)

    def _begin(self) -> None:
        cost = self._cost
        while self._waiting and len(self._running) + len(self._admitted) < cost.max_sequences:
            needed = self._waiting[0].prompt + self._waiting[0].output
            if self._held_kv + needed > cost.kv_tokens and self._held_kv:
                break
            self._held_kv += needed
            self._admitted.append(self._waiting.popleft())
        room, chunks = CHUNK_TOKENS - len(self._running), []
        for request in self._admitted:
            if room <= 0:
                break
            tokens = min(room, request.left)
            chunks.append((request, tokens))
            room -= tokens
        self._doing = chunks
        self._ends_s = self._now_s + self._step_s(sum(tokens for _, tokens in chunks))

    def _step_s(self, prompt_tokens: int) -> float:
        cost = self._cost
        return cost.step_s + cost.sequence_s * len(self._running) + cost.token_s * prompt_tokens

    def _jump(self, until_s: float) -> bool:
        """Steps in which nobody begins or ends are done at once."""
        if self._doing or not self._running:
            return False
        step_s = self._step_s(0)
        whole = min(
            self._running[0][0] - self.totals.steps - 1, int((until_s - self._now_s) / step_s)
        )
        if whole <= 0:
            return False
        self._ran(whole, step_s * whole, len(self._running))
        self._doing = None
        return True

    def _ran(self, steps: int, seconds: float, sequences: int) -> None:
        totals = self.totals
        totals.steps += steps
        totals.sequence_steps += steps * sequences
        totals.output_tokens += steps * sequences * self._cost.tokens_per_step
        totals.busy_s += seconds
        self._now_s += seconds

    def _end(self, targets: tuple[float, float]) -> None:
        chunks, self._doing = self._doing or [], None
        self._ran(1, self._ends_s - self._now_s, len(self._running))
        self._now_s = self._ends_s
        totals = self.totals
        while self._running and self._running[0][0] <= totals.steps:
            self._finish(heapq.heappop(self._running)[2], targets)
        for request, tokens in chunks:
            request.left -= tokens
            if request.left:
                continue
            self._admitted.remove(request)
            request.first_s = self._now_s
            self.firsts.append((self._now_s, request.ttft_s))
            totals.ttft_count += 1
            totals.sequence_steps += 1
            totals.output_tokens += 1
            totals.prefilled_tokens += request.prompt
            totals.prompt_squares += request.prompt**2
            if request.can_wait:
                tokens = request.prompt
                totals.of_batch(prefilled=1, prefilled_tokens=tokens, prompt_squares=tokens**2)
            steps = math.ceil((request.output - 1) / self._cost.tokens_per_step)
            if steps <= 0:
                self._finish(request, targets)
                continue
            self._count += 1
            heapq.heappush(self._running, (totals.steps + steps, self._count, request))

    def _finish(self, request: Request, targets: tuple[float, float]) -> None:
        request.end_s = self._now_s
        self._held_kv -= request.prompt + request.output
        self.totals.requests_finished += 1
        self.totals.prompt_tokens += request.prompt
        self.totals.on_time += request.meets(*(request.targets or targets))
        if request.can_wait:
            self.totals.of_batch(ended=1, output_tokens=request.output)

    def report(self, now_s: float) -> VerifierReport:
        """As a real verifier tells the registry."""
        totals, cost = self.totals, self._cost
        waiting = [*self._waiting, *self._admitted]
        counts = {name: getattr(totals, name) for name in Totals.__slots__}
        counts["output_tokens"] = int(totals.output_tokens)
        return report_of(
            worker_id=self.name,
            started_at_s=self.ready_at_s,
            reported_at_s=now_s,
            requests_running=len(self._running),
            requests_waiting=len(waiting),
            requests_in_flight=self.requests,
            queued_tokens=sum(request.left for request in waiting),
            queued_batch_tokens=sum(request.left for request in waiting if request.can_wait),
            kv_tokens=int(cost.kv_tokens),
            max_sequences=int(cost.max_sequences),
            kv_cache_usage=min(1.0, self._held_kv / cost.kv_tokens),
            **counts,
        )


def report_of(**changes: object) -> VerifierReport:
    """A report of a verifier that has done nothing, but for `changes`."""
    empty: dict[str, Any] = dict.fromkeys(
        (
            "pid",
            "started_at_s",
            "requests_running",
            "requests_waiting",
            "requests_in_flight",
            "requests_finished",
            "requests_failed",
            "requests_aborted",
            "prompt_tokens",
            "cached_prompt_tokens",
            "output_tokens",
            "drafted_tokens",
            "accepted_tokens",
            "steps",
            "sequence_steps",
            "kv_cache_usage",
            "ttft_sum_s",
            "ttft_count",
            "reported_at_s",
        ),
        0,
    )
    names = {"worker_id": "v", "node_ip": "127.0.0.1", "model": "m", "weights_fingerprint": "w"}
    return VerifierReport(**{**empty, **names, "accepted_per_position": [], **changes})


@dataclass
class SimulatedFleet:
    """Verifiers that come and go, and a router.

    Attributes:
        cost: Of each engine.
        cold_start_s: From a decision to a verifier's readiness.
        targets: (seconds to the first token, seconds per token) that `on_time` is counted by.
        changes: (when, target) of each decision that changed the target.
    """

    cost: Work
    cold_start_s: float = 60.0
    targets: tuple[float, float] = (2.0, 0.1)
    target: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    members: list[SimulatedVerifier] = field(default_factory=list)
    replica_s: float = 0.0
    _names: int = 0

    def scale(self, target: int, now_s: float, cold: bool = True) -> None:
        """Starts or lets go verifiers, the latest first."""
        if target != self.target:
            self.changes.append((now_s, target))
        self.target = target
        staying = [member for member in self.members if not member.leaving]
        for member in sorted(staying, key=lambda m: -m.ready_at_s)[: max(0, len(staying) - target)]:
            member.leaving = True
        for _ in range(target - len(staying)):
            self._names += 1
            ready_s = now_s + (self.cold_start_s if cold else 0.0)
            self.members.append(SimulatedVerifier(f"v{self._names}", self.cost, now_s, ready_s))

    def running(self, now_s: float) -> list[SimulatedVerifier]:
        """That answer and are not leaving."""
        return [m for m in self.members if not m.leaving and m.ready_at_s <= now_s]

    def advance(self, until_s: float) -> None:
        """Runs every verifier until then."""
        for member in self.members:
            member.advance(until_s, self.targets)

    def route(self, request: Request) -> None:
        """Sends a request where the fewest are."""
        self.advance(request.at_s)
        there = self.running(request.at_s)
        min(there, key=lambda member: member.requests).take(request)

    def tick(self, now_s: float, period_s: float) -> None:
        """A period is over: counts replica-seconds, and drops those that are done leaving."""
        self.advance(now_s)
        self.replica_s += len(self.members) * period_s
        self.members = [m for m in self.members if not m.leaving or m.requests]

    @property
    def ongoing(self) -> int:
        """Requests in all verifiers."""
        return sum(member.requests for member in self.members)
