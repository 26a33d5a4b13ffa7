"""Metrics of the autoscaler, listed with their units in docs/metrics.md."""

from ray.util.metrics import Counter, Gauge

from kvstore.scaling_report import PoolReport, ScalingReport


class ScalingMetrics:
    """Told of every decision. They are the controller's: no replica has them."""

    def __init__(self) -> None:
        self._target = Gauge(
            "paceline_scaling_target", description="Replicas there shall be.", tag_keys=("pool",)
        )
        self._running = Gauge(
            "paceline_scaling_running", description="Replicas there are.", tag_keys=("pool",)
        )
        self._needed = Gauge(
            "paceline_scaling_needed",
            description="Replicas that the load needs, whatever the bounds.",
            tag_keys=("pool",),
        )
        self._steps = Counter(
            "paceline_scaling_steps_total",
            description="Decisions that changed the number.",
            tag_keys=("pool", "direction", "limit"),
        )
        self._attainment = Gauge(
            "paceline_scaling_attainment_ratio",
            description="Part of recent requests that met both targets, 0-1.",
        )
        self._cold_start_s = Gauge(
            "paceline_scaling_cold_start_seconds",
            description="From a decision to a verifier's start.",
        )

    def saw(self, decided: ScalingReport) -> None:
        """Takes in a decision."""
        self._pool("verifiers", decided.verifiers, decided.limit)
        if decided.draft_workers is not None:
            self._pool("draft_workers", decided.draft_workers, "drafts")
        if decided.attainment is not None:
            self._attainment.set(decided.attainment)
        self._cold_start_s.set(decided.cold_start_s)

    def _pool(self, name: str, pool: PoolReport, limit: str) -> None:
        tags = {"pool": name}
        self._target.set(pool.target, tags=tags)
        self._running.set(pool.running, tags=tags)
        self._needed.set(pool.needed, tags=tags)
        if pool.target != pool.before:
            direction = "up" if pool.target > pool.before else "down"
            self._steps.inc(tags={**tags, "direction": direction, "limit": limit})
