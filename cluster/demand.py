"""What the verifiers' reports say of demand and of the work it makes: differences of counts.

Every verifier counts from its own start. Here the counts of two reports of one verifier are
subtracted and added up over the fleet, so that one which comes, goes or restarts is no jump. A
verifier that was there before this meter counts from its first report on, one that came later
from zero.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from cluster.arrivals import Arrivals
from cluster.forecast import Demand, Work
from cluster.queueing import spread_of
from cluster.work_fit import WorkFit
from kvstore.verifier_report import BatchCounts, VerifierReport

LEAST_REQUESTS: Final = 5
"""Ended ones before anything is said of requests."""
REMEMBERED_S: Final = 100.0
"""After which what was counted weighs 1/e; lengths change slower than rates."""
SAMPLE_BUSY_S: Final = 1.0
"""A sample for the fit is at least so much of an engine's time."""


@dataclass(frozen=True)
class Counts:
    """Sums over verifiers and time."""

    started: float = 0.0
    ended: float = 0.0
    on_time: float = 0.0
    batch_started: float = 0.0
    batch_prefilled: float = 0.0
    batch_prefilled_tokens: float = 0.0
    batch_prompt_squares: float = 0.0
    batch_ended: float = 0.0
    batch_output_tokens: float = 0.0
    prefilled: float = 0.0
    prefilled_tokens: float = 0.0
    prompt_squares: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    sequence_steps: float = 0.0
    steps: float = 0.0
    busy_s: float = 0.0

    @classmethod
    def of(cls, report: VerifierReport) -> "Counts":
        """Those of one report."""
        ended = report.requests_finished + report.requests_aborted + report.requests_failed
        batch = report.batch or BatchCounts()
        return cls(
            started=report.requests_started,
            ended=ended,
            on_time=report.on_time,
            batch_started=batch.started,
            batch_prefilled=batch.prefilled,
            batch_prefilled_tokens=batch.prefilled_tokens,
            batch_prompt_squares=batch.prompt_squares,
            batch_ended=batch.ended,
            batch_output_tokens=batch.output_tokens,
            prefilled=report.ttft_count,
            prefilled_tokens=report.prefilled_tokens,
            prompt_squares=report.prompt_squares,
            prompt_tokens=report.prompt_tokens,
            output_tokens=report.output_tokens,
            sequence_steps=report.sequence_steps,
            steps=report.steps,
            busy_s=report.busy_s,
        )

    def scaled(self, factor: float) -> "Counts":
        """Each of them times `factor`."""
        return Counts(*(getattr(self, f.name) * factor for f in fields(self)))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "Counts") -> "Counts":
        return self + other.scaled(-1.0)


class DemandMeter:
    """Told of all reports again and again.

    Args:
        window_s: Over which arrivals are looked at.
    """

    def __init__(self, window_s: float) -> None:
        self.arrivals = Arrivals(window_s)
        self.fit = WorkFit()
        self._window_s = window_s
        self._last: dict[str, Counts] = {}
        self._sampled: dict[str, Counts] = {}
        self._sums = Counts()
        self._outcomes: deque[tuple[float, float, float]] = deque()
        self._since_s: float | None = None
        self._saw_s = 0.0
        self._backlog = self._batch_backlog = 0.0
        self._kv_tokens = self._max_sequences = 0.0

    def saw(self, reports: Iterable[VerifierReport], now_s: float) -> None:
        """Takes in the live verifiers' latest reports (wall clock, seconds)."""
        reports = tuple(reports)
        if self._since_s is None:
            self._since_s = self._saw_s = now_s
        new = Counts()
        for report in reports:
            counts = Counts.of(report)
            is_new = report.started_at_s >= self._since_s
            before = self._last.get(report.worker_id, Counts() if is_new else counts)
            new += counts - before
            self._last[report.worker_id] = counts
            self._sample(report.worker_id, counts, before)
        live = {report.worker_id for report in reports}
        for known in (self._last, self._sampled):
            for gone in known.keys() - live:
                del known[gone]
        self.arrivals.add(max(0.0, new.started), now_s)
        passed_s = max(0.0, now_s - self._saw_s)
        self._sums = self._sums.scaled(math.exp(-passed_s / REMEMBERED_S)) + new
        self._saw_s = now_s
        self._outcomes.append((now_s, new.ended, new.on_time))
        while self._outcomes[0][0] <= now_s - self._window_s:
            self._outcomes.popleft()
        self._backlog = sum(report.queued_tokens for report in reports)
        self._batch_backlog = sum(report.queued_batch_tokens for report in reports)
        # All verifiers are alike; the smallest is taken where they are not.
        self._kv_tokens = min((r.kv_tokens for r in reports), default=self._kv_tokens)
        self._max_sequences = min((r.max_sequences for r in reports), default=self._max_sequences)

    def _sample(self, worker_id: str, counts: Counts, before: Counts) -> None:
        since = self._sampled.setdefault(worker_id, before)
        part = counts - since
        if part.busy_s >= SAMPLE_BUSY_S:
            self.fit.add(part.steps, part.sequence_steps, part.prefilled_tokens, part.busy_s)
            self._sampled[worker_id] = counts

    def attainment(self) -> float | None:
        """Part of the window's ended requests that met the targets, 0-1; None: too few."""
        ended = sum(count for _, count, _ in self._outcomes)
        if ended < LEAST_REQUESTS:
            return None
        return min(1.0, sum(count for _, _, count in self._outcomes) / ended)

    def demand(self, rate: float) -> Demand | None:
        """Of requests like the latest, at a rate; None where too few were seen."""
        sums = self._sums
        if sums.prefilled < LEAST_REQUESTS or sums.ended < LEAST_REQUESTS:
            return None
        prompt = sums.prefilled_tokens / sums.prefilled
        output = sums.output_tokens / sums.prefilled
        return Demand(
            rate=rate,
            prompt=prompt,
            output=output,
            spread=spread_of(prompt, sums.prompt_squares / sums.prefilled),
            context=sums.prompt_tokens / sums.ended + output / 2,
            backlog=self._backlog,
            batch=self._batch(rate),
        )

    def _batch(self, rate: float) -> Demand | None:
        """The part that can wait; None where too little of it was seen to know it."""
        sums = self._sums
        if sums.batch_prefilled < LEAST_REQUESTS or sums.batch_ended < LEAST_REQUESTS:
            return None
        prompt = sums.batch_prefilled_tokens / sums.batch_prefilled
        return Demand(
            rate=rate * min(1.0, sums.batch_started / sums.started),
            prompt=prompt,
            output=sums.batch_output_tokens / sums.batch_ended,
            spread=spread_of(prompt, sums.batch_prompt_squares / sums.batch_prefilled),
            backlog=self._batch_backlog,
        )

    def work(self) -> Work | None:
        """What steps cost; None until enough were seen."""
        cost, sums = self.fit.cost(), self._sums
        if cost is None:
            return None
        return Work(
            step_s=cost.step_s,
            sequence_s=cost.sequence_s,
            token_s=cost.token_s,
            tokens_per_step=max(1.0, sums.output_tokens / max(sums.sequence_steps, 1.0)),
            kv_tokens=self._kv_tokens,
            max_sequences=self._max_sequences,
        )
