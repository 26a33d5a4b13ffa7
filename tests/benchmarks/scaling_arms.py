"""Who decides in the replays of `autoscale.py`: our scaler, and Ray's policies in Ray's code."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import ray.serve.autoscaling_policy as ray_policy
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig as RayAutoscaling
from ray.serve.config import AutoscalingContext
from simulated_fleet import SimulatedFleet

from cluster.scaler import Observation, Pool, Scaler
from configs.sections.scaling import AutoscalingConfig

LOOK_BACK_S = 30.0
TTFT_WINDOW_S = 60.0
FEWER_BELOW = 0.5
"""Part of the target below which the TTFT policy takes one away."""


class Arm(Protocol):
    """Looks at the fleet once a second."""

    def decide(self, fleet: SimulatedFleet, now_s: float) -> int:
        """How many verifiers there shall be."""


class Ours:
    """`cluster.scaler`, which sees what verifiers report and what Serve counts."""

    def __init__(self, config: AutoscalingConfig, least: int) -> None:
        self.scaler = Scaler(config, least)
        self.reasons: list[tuple[float, int, str]] = []

    def decide(self, fleet: SimulatedFleet, now_s: float) -> int:
        """As the policy in Serve's controller does."""
        there = fleet.running(now_s)
        told = self.scaler.decide(
            Observation(
                now_s=now_s,
                verifiers=Pool(fleet.target, len(there)),
                verifier_reports=tuple(member.report(now_s) for member in there),
            )
        )
        if told.verifiers.target != fleet.target:
            self.reasons.append((now_s, told.verifiers.target, told.verifiers.reason))
        return told.verifiers.target


class _Clock:
    """Stands in for the `time` module that Ray's delays ask."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class RayArm:
    """A deployment's policy as Serve's controller runs it: factors, delays and bounds are Ray's.

    Args:
        config: Ray's, with the bounds and delays.
        policy: Ray's policy function, or one with its signature.
    """

    def __init__(self, config: RayAutoscaling, policy: Callable[..., Any] | None = None) -> None:
        self.config = config
        self._policy = ray_policy._apply_autoscaling_config(
            policy or ray_policy.replica_queue_length_autoscaling_policy
        )
        self._state: dict[str, Any] = {}
        self._ongoing: deque[int] = deque(maxlen=int(LOOK_BACK_S))
        self.firsts: deque[tuple[float, float]] = deque()
        self._clock = _Clock()

    def decide(self, fleet: SimulatedFleet, now_s: float) -> int:
        """One turn of the control loop."""
        self._ongoing.append(fleet.ongoing)
        self._see_firsts(fleet, now_s)
        self._clock.now_s = now_s
        context = AutoscalingContext(
            deployment_id=DeploymentID(name="Verifier", app_name="simulated"),
            deployment_name="Verifier",
            app_name="simulated",
            current_num_replicas=len(fleet.running(now_s)),
            target_num_replicas=fleet.target,
            running_replicas=[],
            total_num_requests=sum(self._ongoing) / len(self._ongoing),
            total_queued_requests=0.0,
            aggregated_metrics={"p99_ttft_s": self._p99_s()},
            raw_metrics={},
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now_s,
            config=self.config,
        )
        real, ray_policy.time = ray_policy.time, self._clock
        try:
            wanted, self._state = self._policy(context)
        finally:
            ray_policy.time = real
        # As `DeploymentAutoscalingState.apply_bounds` does without a target capacity.
        return max(self.config.min_replicas, min(self.config.max_replicas, math.ceil(wanted)))

    def _see_firsts(self, fleet: SimulatedFleet, now_s: float) -> None:
        for member in fleet.members:
            while member.firsts:
                self.firsts.append(member.firsts.popleft())
        while self.firsts and self.firsts[0][0] < now_s - TTFT_WINDOW_S:
            self.firsts.popleft()

    def _p99_s(self) -> float | None:
        ordered = sorted(ttft_s for _, ttft_s in self.firsts)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else None


def ttft_policy(target_s: float) -> Callable[[AutoscalingContext], tuple[float, dict[str, Any]]]:
    """The rule of Ray's TTFT policy (pull request 64725, not in 2.60): one more while the 99th
    percentile of the time to the first token is above the target, one fewer well below it.
    """

    def policy(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        current = context.current_num_replicas
        p99_s = context.aggregated_metrics["p99_ttft_s"]
        if p99_s is None:
            return float(current), {}
        if p99_s > target_s:
            return float(current + 1), {}
        return float(max(current - 1, 1) if p99_s < FEWER_BELOW * target_s else current), {}

    return policy
