"""What a draft worker tells of its model: to the registry, and to Prometheus (docs/metrics.md)."""

from ray.serve.metrics import Gauge

from kvstore.draft_report import DraftModelReport
from kvstore.total_counter import TotalCounter
from replicas.draft.running_ahead import ModelStats


class ModelReporter:
    """Makes reports of one model, one after the other.

    Args:
        name: Folder or hub id of the model.
        now_s: By any clock that never goes back, seconds.
    """

    def __init__(self, name: str, now_s: float) -> None:
        self._name = name
        self._at_s, self._busy_s = now_s, 0.0

    def report(self, stats: ModelStats, now_s: float) -> DraftModelReport:
        """For the registry; `now_s` by the same clock."""
        elapsed_s = max(now_s - self._at_s, 1e-9)
        busy_ratio = min(1.0, max(0.0, (stats.busy_s - self._busy_s) / elapsed_s))
        self._at_s, self._busy_s = now_s, stats.busy_s
        counts = stats.counts
        return DraftModelReport(
            name=self._name[-256:],
            places=stats.places,
            running=stats.running,
            asked=counts.asked,
            ready=counts.ready,
            followed=counts.followed,
            branched=counts.branched,
            restarted=counts.restarted,
            generated=counts.generated,
            step_s=stats.step_s,
            busy_ratio=busy_ratio,
        )


class ModelTelemetry:
    """Sets Prometheus by a model's reports."""

    def __init__(self) -> None:
        self._asked = TotalCounter(
            "paceline_draft_model_asks_total", "Asks that wanted tokens of the draft model."
        )
        self._ready = TotalCounter(
            "paceline_draft_model_ready_total", "Asks answered in full at once."
        )
        self._followed = TotalCounter(
            "paceline_draft_model_followed_total", "Texts that went on as the model had drafted."
        )
        self._branched = TotalCounter(
            "paceline_draft_model_branched_total", "Texts that took a prepared rejection."
        )
        self._restarted = TotalCounter(
            "paceline_draft_model_restarted_total", "Texts that went an unprepared way."
        )
        self._generated = TotalCounter(
            "paceline_draft_model_tokens_total", "Tokens that the draft model generated."
        )
        self._running = Gauge(
            "paceline_draft_model_running", description="Sequences in the draft model's engine."
        )
        self._step_s = Gauge(
            "paceline_draft_model_step_seconds", description="Usual time of one of its steps."
        )
        self._busy_ratio = Gauge(
            "paceline_draft_model_busy_ratio",
            description="Part of the last second in which it computed, 0-1.",
        )

    def saw(self, report: DraftModelReport) -> None:
        """Takes in a report; Ray exports a gauge only while it is set."""
        self._asked.reach(report.asked)
        self._ready.reach(report.ready)
        self._followed.reach(report.followed)
        self._branched.reach(report.branched)
        self._restarted.reach(report.restarted)
        self._generated.reach(report.generated)
        self._running.set(report.running)
        self._step_s.set(report.step_s)
        self._busy_ratio.set(report.busy_ratio)
