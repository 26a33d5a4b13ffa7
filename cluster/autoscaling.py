"""The thin adapter between Ray Serve's autoscaler and our scaler.

Serve's controller makes one `ScalingPolicy` for the application and asks it in each turn of its
control loop, verifiers and draft workers together. The turn must not wait, so a thread reads the
registry once a second and tells Redis and Prometheus what was decided.

Serve pickles this module by value when it builds the application, so it holds nothing but the
adapter. Its own factors and delays are neutral: what happens when is for `cluster/scaler.py`.
"""

import logging
import threading
import time
from collections import deque
from typing import Any, Final

from ray.serve.config import AutoscalingContext

from cluster.scaler import Observation, Pool, Scaler
from cluster.scaling_metrics import ScalingMetrics
from configs.schema import ClusterConfig
from kvstore.errors import StoreError
from kvstore.redis_client import RedisSettings, redis_settings
from kvstore.registry import Listing, read_live
from kvstore.scaling_report import ScalingReport, read_scaling, write_scaling
from kvstore.verifier_report import VerifierReport

logger = logging.getLogger("ray.serve").getChild("paceline")
"""Below Serve's own, so that its lines are in the controller's log."""

PERIOD_S: Final = 1.0
IDLE_S: Final = 60.0
"""The thread ends when no turn has asked for so long: the application is gone, or has another."""

UNTOLD: Final = 600
"""Decisions that wait to be told while Redis is away: those of ten minutes."""

Decisions = tuple[dict[Any, int], dict[Any, dict[str, Any]]]


def neutral(least: int, most: int) -> dict[str, Any]:
    """Ray's autoscaling config for a deployment whose number this policy decides."""
    return {
        "min_replicas": least,
        "max_replicas": most,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
        "policy": {"policy_function": "cluster.autoscaling:keep"},
    }


def keep(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Of a single deployment: as many as there are. Only the application's policy decides."""
    return context.target_num_replicas, {}


def application_policy(config: ClusterConfig) -> dict[str, Any]:
    """What stands under `autoscaling_policy` of the application in a Serve config."""
    return {
        "policy_function": "cluster.autoscaling:ScalingPolicy",
        "policy_kwargs": {"config": config.model_dump(mode="json")},
    }


class ScalingPolicy:
    """Decides how many verifiers and draft workers there are.

    Args:
        config: The cluster's config as JSON data.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = ClusterConfig.model_validate(config)
        self._scaler: Scaler | None = None
        self._registry = RegistryThread(self._config)
        self._decided_at_s = 0.0
        self._last: ScalingReport | None = None

    def __call__(self, contexts: dict[Any, AutoscalingContext]) -> Decisions:
        """One turn of Serve's control loop.

        Args:
            contexts: Of each scaling deployment.

        Returns:
            How many replicas of each there shall be, and nothing for Serve to keep.
        """
        verifiers = _find(contexts, "Verifier")
        if verifiers is None:
            return {}, {}
        workers = _find(contexts, "DraftWorker")
        now_s = time.time()
        read = self._registry.latest()
        if read is None:  # nothing was read yet
            return {}, {}
        if now_s - self._decided_at_s < PERIOD_S and self._last is not None:
            return _decisions(self._last, verifiers, workers), {}
        self._decided_at_s = now_s
        if self._scaler is None:
            self._scaler = Scaler.of(self._config, read.cold_start_s)
        try:
            decided = self._scaler.decide(
                Observation(
                    now_s=now_s,
                    verifiers=_pool(verifiers),
                    workers=_pool(workers) if workers else None,
                    verifier_reports=_of_running(read.verifiers, verifiers),
                    worker_reports=read.workers.reports if read.workers else (),
                )
            )
        except Exception:  # would end the control loop's turn for every deployment
            logger.exception("scaling failed; as many stay as there are")
            return {}, {}
        self._last = decided
        for name, pool in (("verifiers", decided.verifiers), ("workers", decided.draft_workers)):
            if pool is not None and pool.target != pool.before:
                logger.info("scaling pool=%s reason=%r", name, pool.reason)
        self._registry.tell(decided)
        return _decisions(decided, verifiers, workers), {}


def _find(contexts: dict[Any, AutoscalingContext], name: str) -> AutoscalingContext | None:
    """The deployment whose name begins so; Serve LLM adds the model's name to the verifiers'."""
    return next((c for c in contexts.values() if c.deployment_name.startswith(name)), None)


def _pool(context: AutoscalingContext) -> Pool:
    return Pool(context.target_num_replicas, context.current_num_replicas)


def _of_running(
    listing: Listing[VerifierReport] | None, context: AutoscalingContext
) -> tuple[VerifierReport, ...] | None:
    """Reports of those that Serve routes to, without any that is leaving."""
    if listing is None:
        return None
    running = {replica.unique_id for replica in context.running_replicas}
    return tuple(report for report in listing.reports if report.worker_id in running)


def _decisions(
    decided: ScalingReport, verifiers: AutoscalingContext, workers: AutoscalingContext | None
) -> dict[Any, int]:
    numbers = {verifiers.deployment_id: decided.verifiers.target}
    if workers is not None and decided.draft_workers is not None:
        numbers[workers.deployment_id] = decided.draft_workers.target
    return numbers


class Reading:
    """What one look at the registry found; `verifiers` is None where it can't be read."""

    def __init__(self, verifiers: Any, workers: Any, cold_start_s: float | None) -> None:
        self.verifiers, self.workers, self.cold_start_s = verifiers, workers, cold_start_s


class RegistryThread:
    """Reads the registry and tells decisions, beside the control loop. Starts on first use.

    Args:
        config: The cluster's.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._metrics = ScalingMetrics()
        self._thread: threading.Thread | None = None
        self._asked_at_s = 0.0
        self._reading: Reading | None = None
        self._to_tell: deque[ScalingReport] = deque(maxlen=UNTOLD)
        self._cold_start_s: float | None = None
        self._is_lost = False

    def latest(self) -> Reading | None:
        """The latest look, a second old; None before the first."""
        self._asked_at_s = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="paceline-scaling", daemon=True)
            self._thread.start()
        return self._reading

    def tell(self, decided: ScalingReport) -> None:
        """Has a decision counted, and the latest one told to whoever looks."""
        self._to_tell.append(decided)

    def _run(self) -> None:
        while time.monotonic() - self._asked_at_s < IDLE_S:
            try:
                self._look(redis_settings(self._config))
            except StoreError as error:
                if not self._is_lost:
                    logger.warning("scaling registry=lost error=%s", error)
                self._is_lost = True
                self._reading = Reading(None, None, self._cold_start_s)
            time.sleep(PERIOD_S)

    def _look(self, settings: RedisSettings) -> None:
        name = self._config.name
        if self._reading is None and (before := read_scaling(settings, name)) is not None:
            self._cold_start_s = before.cold_start_s
        split = self._config.drafting.split is not None
        self._reading = Reading(
            read_live(settings, name, "verifier"),
            read_live(settings, name, "draft") if split else None,
            self._cold_start_s,
        )
        self._is_lost = False
        decided = None
        while self._to_tell:  # none is left out: each may be a step that is counted
            decided = self._to_tell.popleft()
            self._metrics.saw(decided)
        if decided is not None:
            write_scaling(settings, name, decided)
