"""What became of drafts, from the reports of verifiers and draft workers: differences of counts."""

from collections import deque
from collections.abc import Iterable

from cluster.draft_scaling import DraftUse
from kvstore.draft_report import DraftWorkerReport
from kvstore.verifier_report import VerifierReport
from replicas.verifier.governor import STOP_ALL
from replicas.verifier.proposer import LOCAL

Counts = tuple[float, ...]


class DraftUseMeter:
    """Told of all reports again and again.

    Args:
        window_s: That `use` looks back on.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._last: dict[str, Counts] = {}
        self._changes: deque[tuple[float, Counts]] = deque()
        self._since_s: float | None = None

    def use(
        self,
        verifiers: Iterable[VerifierReport],
        workers: Iterable[DraftWorkerReport],
        now_s: float,
    ) -> DraftUse:
        """Takes in the latest reports (wall clock, seconds), and says what the window holds."""
        verifiers, workers = tuple(verifiers), tuple(workers)
        if self._since_s is None:
            self._since_s = now_s
        change = _sum(
            [
                self._change(report.worker_id, _of_verifier(report), report.started_at_s)
                for report in verifiers
            ]
            + [
                self._change(report.worker_id, _of_worker(report), report.started_at_s)
                for report in workers
            ]
        )
        live = {report.worker_id for report in verifiers}
        live |= {report.worker_id for report in workers}
        for gone in self._last.keys() - live:
            del self._last[gone]
        self._changes.append((now_s, change))
        while self._changes[0][0] <= now_s - self._window_s:
            self._changes.popleft()
        output, accepted, misses, asks, evictions = _sum([c for _, c in self._changes])
        governed = [r.governor for r in verifiers if r.governor is not None]
        return DraftUse(
            allowed=any(g.mode != "off" and g.pressure < STOP_ALL for g in governed),
            output_tokens=output,
            accepted_tokens=accepted,
            asks=asks,
            misses=misses,
            evictions=evictions,
            workers=len(workers),
            busy=sum(report.busy_ratio for report in workers),
            sessions=sum(report.sessions for report in workers),
        )

    def _change(self, worker_id: str, counts: Counts, started_at_s: float) -> Counts:
        is_new = self._since_s is not None and started_at_s >= self._since_s
        before = self._last.get(worker_id, (0.0,) * len(counts) if is_new else counts)
        self._last[worker_id] = counts
        return tuple(max(0.0, now - then) for now, then in zip(counts, before, strict=True))


def _of_verifier(report: VerifierReport) -> Counts:
    accepted = sum(
        sum(counts.accepted) for source, counts in report.draft_sources.items() if source != LOCAL
    )
    return (report.output_tokens, accepted, report.deadline_misses, 0.0, 0.0)


def _of_worker(report: DraftWorkerReport) -> Counts:
    return (0.0, 0.0, 0.0, report.asks, report.evicted_sessions)


def _sum(counts: list[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True))) if counts else (0.0,) * 5
