"""Metrics of one draft worker, listed with their units in docs/metrics.md."""

from ray.serve.metrics import Gauge

from kvstore.total_counter import TotalCounter
from replicas.draft.tally import ServiceStats


class DraftTelemetry:
    """Sets Prometheus by what the service says of itself."""

    def __init__(self) -> None:
        self._asks = TotalCounter("paceline_draft_worker_asks_total", "Asked, counted by session.")
        self._unknown = TotalCounter(
            "paceline_draft_worker_unknown_total",
            "Sessions whose whole context had to be asked for.",
        )
        self._drafted_tokens = TotalCounter(
            "paceline_draft_worker_drafted_tokens_total", "Draft tokens sent."
        )
        self._malformed = TotalCounter(
            "paceline_draft_worker_malformed_total", "Messages dropped.", "what"
        )
        self._evicted = TotalCounter(
            "paceline_draft_worker_evicted_sessions_total",
            "Sessions dropped for want of memory.",
        )
        self._unsent = TotalCounter(
            "paceline_draft_worker_unsent_total", "Answers that no verifier took."
        )
        self._failed = TotalCounter(
            "paceline_draft_worker_failed_drafts_total", "Drafts that ended in an exception."
        )
        self._sessions = Gauge("paceline_draft_worker_sessions", description="Contexts held.")
        self._context_tokens = Gauge(
            "paceline_draft_worker_context_tokens", description="Tokens of the contexts held."
        )
        self._busy_ratio = Gauge(
            "paceline_draft_worker_busy_ratio",
            description="Part of the last second in which it worked, 0-1.",
        )

    def saw(self, stats: ServiceStats) -> None:
        """Takes in what the service did so far; Ray exports a gauge only while it is set."""
        self._asks.reach(stats.asks)
        self._unknown.reach(stats.unknown)
        self._drafted_tokens.reach(stats.drafted_tokens)
        self._evicted.reach(stats.evicted_sessions)
        self._unsent.reach(stats.unsent)
        self._failed.reach(stats.failed_drafts)
        for what, count in stats.malformed.items():
            self._malformed.reach(count, what)
        self._sessions.set(stats.sessions)
        self._context_tokens.set(stats.context_tokens)
        self._busy_ratio.set(stats.busy_ratio)
