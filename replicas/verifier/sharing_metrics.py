"""Metrics of shared KV blocks in one verifier, listed with their units in docs/metrics.md."""

from ray.serve.metrics import Gauge

from kvstore.kv_reports import SharingReport
from kvstore.total_counter import TotalCounter


class SharingMetrics:
    """Sets Prometheus by what the scheduler says of its look-ups."""

    def __init__(self) -> None:
        self._decided = TotalCounter(
            "paceline_kv_lookups_decided_total",
            "Requests by whether and why they were looked up.",
            "reason",
        )
        self._outcomes = TotalCounter(
            "paceline_kv_lookups_total", "Look-ups by what came of them.", "outcome"
        )
        self._tokens = TotalCounter("paceline_kv_fetched_tokens_total", "Tokens fetched.")
        self._load_s = TotalCounter(
            "paceline_kv_load_seconds_total", "Time that fetched tokens took into the engine."
        )
        self._connected = Gauge(
            "paceline_kv_connected", description="1 while the node's LMCache answers, else 0."
        )
        self._cost = Gauge(
            "paceline_kv_token_seconds",
            description="What one token more costs, by where its blocks come from.",
            tag_keys=("source",),
        )

    def saw(self, sharing: SharingReport) -> None:
        """Takes in the totals."""
        for reason, count in sharing.decided.items():
            self._decided.reach(count, reason)
        for outcome, count in sharing.outcomes.items():
            self._outcomes.reach(count, outcome)
        self._tokens.reach(sharing.tokens)
        self._load_s.reach(sharing.load_s)
        self._connected.set(int(sharing.is_healthy))
        known = {"compute": sharing.compute, "memory": sharing.load, **sharing.tiers}
        for source, line in known.items():
            if line is not None:
                self._cost.set(line.s_per_token, tags={"source": source})
