"""How many verifiers and draft workers there shall be, from what they report: no I/O, no clock.

Called again and again with the latest reports and what Serve counts. It learns what requests and
steps are like (`demand.py`), predicts what so many verifiers would keep (`forecast.py`), and moves
towards it without going to and fro (`scaling.py`); draft workers by what their drafts are worth
(`draft_scaling.py`). A scaler that has just been made, in a controller that was restarted, too,
changes nothing before it has looked at a whole window.
"""

import math
from dataclasses import dataclass
from typing import Final

from cluster.arrivals import RateForecast
from cluster.demand import DemandMeter
from cluster.draft_scaling import DraftMemory, wanted_workers
from cluster.draft_use import DraftUseMeter
from cluster.forecast import Demand, Limit, Need, Targets, Work, verifiers_needed
from cluster.scaling import MARGIN, Bounds, Memory, Step, Wanted, step
from cluster.starts import StartTimes
from configs.request_class import BATCH, INTERACTIVE
from configs.schema import ClusterConfig
from configs.sections.scaling import AutoscalingConfig
from kvstore.draft_report import DraftWorkerReport
from kvstore.scaling_report import PoolReport, ScalingReport
from kvstore.verifier_report import VerifierReport


@dataclass(frozen=True)
class Pool:
    """What Serve says of one deployment.

    Attributes:
        target: Replicas that there shall be by the last decision.
        running: Replicas that are there.
    """

    target: int
    running: int


@dataclass(frozen=True)
class Observation:
    """All that a decision is made from.

    Attributes:
        now_s: Wall clock, seconds.
        verifiers: Serve's count of them.
        workers: Of draft workers; None where they don't scale.
        verifier_reports: Latest of each live verifier; None where the registry can't be read.
        worker_reports: Of each live draft worker.
    """

    now_s: float
    verifiers: Pool
    workers: Pool | None = None
    verifier_reports: tuple[VerifierReport, ...] | None = None
    worker_reports: tuple[DraftWorkerReport, ...] = ()


MARGIN_NOISE: Final = 3.0
"""Standard deviations of the rate that staying has room for: a measured rate wanders so far."""
LIMITS: dict[Limit, str] = {
    "ttft": "with fewer, the first token would be late",
    "batch_ttft": "with fewer, the first token of requests that can wait would be late",
    "tpot": "with fewer, tokens would be slow",
    "utilization": "with fewer, too little time would be left",
    "kv": "with fewer, KV caches would be full",
    "sequences": "with fewer, steps would be full",
    "nothing": "the fewest are enough",
}


@dataclass(frozen=True)
class _Plan:
    """What is needed, and from what it follows as far as that is known."""

    rate: RateForecast
    wanted: Wanted | None = None
    demand: Demand | None = None
    work: Work | None = None
    up: Need | None = None


class Scaler:
    """Decides for one cluster.

    Args:
        config: Its `autoscaling`.
        least_verifiers: Fewest of them.
        least_workers: Fewest draft workers.
        cold_start_s: Seen before this process was there; None: never.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        least_verifiers: int = 1,
        least_workers: int = 0,
        cold_start_s: float | None = None,
    ) -> None:
        self._config = config
        self._targets = Targets(
            *config.of_class(INTERACTIVE),
            config.attainment,
            config.utilization,
            *config.of_class(BATCH),
        )
        self._bounds = Bounds(least_verifiers, config.max_verifiers, config.keep_s)
        self._worker_bounds = Bounds(
            least_workers, config.max_draft_workers or least_workers, config.keep_s
        )
        self._meter = DemandMeter(config.window_s)
        self._use = DraftUseMeter(config.window_s)
        self._starts = StartTimes(cold_start_s or config.cold_start_s)
        self._memory, self._worker_memory = Memory(), Memory()
        self._drafts = DraftMemory()

    @classmethod
    def of(cls, config: ClusterConfig, cold_start_s: float | None = None) -> "Scaler":
        """For a cluster whose config has `autoscaling`."""
        assert config.autoscaling is not None
        split = config.drafting.split
        return cls(
            config.autoscaling,
            config.verifiers.replicas,
            split.workers.replicas if split else 0,
            cold_start_s,
        )

    def decide(self, seen: Observation) -> ScalingReport:
        """How many there shall be, and why."""
        now_s, verifiers, workers = seen.now_s, seen.verifiers, seen.workers
        self._starts.saw(verifiers.target, verifiers.running, now_s)
        if seen.verifier_reports is None:
            return ScalingReport(
                at_s=now_s,
                verifiers=self._held(verifiers, self._bounds),
                draft_workers=self._held(workers, self._worker_bounds) if workers else None,
                cold_start_s=self._starts.cold_start_s,
            )
        self._meter.saw(seen.verifier_reports, now_s)
        plan = self._plan(seen.verifier_reports, now_s)
        moved = step(
            self._bounds,
            self._memory,
            plan.wanted,
            verifiers.target,
            verifiers.running,
            now_s,
        )
        self._memory = moved.memory
        needed = plan.wanted.up if plan.wanted else verifiers.target
        return self._told(
            plan,
            now_s,
            _pool(verifiers, moved, needed),
            self._workers(seen, workers, moved.target) if workers else None,
        )

    def _held(self, pool: Pool, bounds: Bounds) -> PoolReport:
        held = step(bounds, Memory(), None, pool.target, pool.running, 0.0).target
        return PoolReport(pool.running, pool.target, held, held, "the registry can't be read")

    def _plan(self, reports: tuple[VerifierReport, ...], now_s: float) -> _Plan:
        """What is needed when a verifier that is started now is there."""
        arrivals, config = self._meter.arrivals, self._config
        rate = arrivals.forecast(self._starts.cold_start_s, now_s)
        known_s = arrivals.known_s(now_s)
        demand, work = self._meter.demand(rate.expected), self._meter.work()
        if not rate.rate and not any(report.requests_in_flight for report in reports):
            if known_s < config.window_s:
                return _Plan(rate)
            least = self._bounds.least
            return _Plan(rate, Wanted(least, least, "nothing is asked"), demand, work)
        if demand is None or work is None or known_s < config.window_s / 4:
            return _Plan(rate, None, demand, work)
        demand = demand.left_after(self._starts.cold_start_s, work, len(reports))
        least, most = self._bounds.least, self._bounds.most
        up = verifiers_needed(work, demand, self._targets, least, most)
        more = demand.at(rate.expected + MARGIN * rate.rate + MARGIN_NOISE * rate.noise)
        keep = verifiers_needed(work, more, self._targets, least, most)
        return _Plan(rate, Wanted(up.verifiers, keep.verifiers, _why(up, demand)), demand, work, up)

    def _workers(self, seen: Observation, pool: Pool, planned: int) -> PoolReport:
        use = self._use.use(seen.verifier_reports or (), seen.worker_reports, seen.now_s)
        wanted, self._drafts = wanted_workers(
            use,
            self._drafts,
            growth=planned / max(seen.verifiers.running, 1),
            settled=pool.running >= pool.target,
            trial_s=self._config.window_s,
            keep_s=self._config.keep_s,
            now_s=seen.now_s,
        )
        moved = step(
            self._worker_bounds,
            self._worker_memory,
            wanted,
            pool.target,
            pool.running,
            seen.now_s,
        )
        self._worker_memory = moved.memory
        return _pool(pool, moved, wanted.up)

    def _told(
        self, plan: _Plan, now_s: float, verifiers: PoolReport, workers: PoolReport | None
    ) -> ScalingReport:
        work, demand, up = plan.work or Work(0.0, 0.0, 0.0, 0.0), plan.demand, plan.up
        predicted = up.prediction if up else None
        return ScalingReport(
            at_s=now_s,
            verifiers=verifiers,
            draft_workers=workers,
            limit=up.limit if up else "unknown",
            rate=plan.rate.expected,
            measured_rate=plan.rate.rate,
            prompt_tokens=demand.prompt if demand else 0.0,
            output_tokens=demand.output if demand else 0.0,
            tokens_per_step=work.tokens_per_step,
            step_s=work.step_s,
            sequence_s=work.sequence_s,
            token_s=work.token_s,
            utilization=predicted.utilization if predicted else 0.0,
            ttft_s=_finite(predicted.ttft_s) if predicted else None,
            tpot_s=_finite(predicted.tpot_s) if predicted else None,
            attainment=self._meter.attainment(),
            cold_start_s=self._starts.cold_start_s,
        )


def _pool(pool: Pool, moved: Step, needed: int) -> PoolReport:
    return PoolReport(pool.running, pool.target, moved.target, needed, moved.reason[:256])


def _why(need: Need, demand: Demand) -> str:
    """What decides, in words."""
    predicted = need.prediction
    words = f"{demand.rate:.2f} requests/s of {demand.prompt:.0f} + {demand.output:.0f} tokens"
    if demand.batch is not None:
        words += f", {demand.batch.rate / demand.rate:.0%} of which can wait"
    if not math.isfinite(predicted.ttft_s):
        return f"{words} are more than {need.verifiers} can do"
    return (
        f"{words}; {need.verifiers} would be used {predicted.utilization:.0%}, first token in "
        f"{predicted.ttft_s:.2f} s, {predicted.tpot_s * 1000:.0f} ms a token; {LIMITS[need.limit]}"
    )


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
