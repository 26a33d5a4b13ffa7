"""The policy as Serve's controller has it: pickled by value and wrapped by Ray's own code."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.serve._private.common import DeploymentID
from ray.serve.autoscaling_policy import _apply_app_level_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext
from simulated_fleet import report_of
from waiting import until

import cluster.autoscaling
from cluster.autoscaling import RegistryThread, ScalingPolicy, application_policy, neutral
from configs import ClusterConfig, parse_config
from kvstore.redis_client import redis_settings
from kvstore.registry import Registry
from kvstore.scaling_report import PoolReport, ScalingReport, read_scaling

VERIFIERS = DeploymentID(name="Verifier:m", app_name="c")
WORKERS = DeploymentID(name="DraftWorker", app_name="c")
WITHIN_S = 30.0


@pytest.fixture
def config(redis_server, tmp_path) -> ClusterConfig:
    """Two to four verifiers and none to two draft workers, with the test's Redis."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(redis_server.settings.password)
    return parse_config(
        {
            "name": "c",
            "model": {"name": "m", "source": "org/model"},
            "hardware": {"kind": "cpu"},
            "verifiers": {"replicas": 2},
            "drafting": {"split": {"workers": {"replicas": 0}}},
            "autoscaling": {"max_verifiers": 4, "max_draft_workers": 2, "cold_start_s": 7},
            "redis": {"url": redis_server.settings.url, "password": {"file": str(password)}},
        },
        "test",
    )


@pytest.fixture
def policy(config: ClusterConfig) -> Iterator[Callable[..., Any]]:
    """What the controller makes of the application's `autoscaling_policy`."""
    named = application_policy(config)
    module, name = named["policy_function"].split(":")
    assert module == cluster.autoscaling.__name__
    cloudpickle.register_pickle_by_value(cluster.autoscaling)
    try:
        made = cloudpickle.loads(cloudpickle.dumps(getattr(cluster.autoscaling, name)))
    finally:
        cloudpickle.unregister_pickle_by_value(cluster.autoscaling)
    yield _apply_app_level_autoscaling_config(made(**named["policy_kwargs"]))


def context(deployment: DeploymentID, target: int, running: tuple[str, ...]) -> AutoscalingContext:
    """As the controller fills it in for a deployment of ours."""
    bounds = neutral(2, 4) if deployment is VERIFIERS else neutral(0, 2)
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=deployment.name,
        app_name="c",
        current_num_replicas=len(running),
        target_num_replicas=target,
        running_replicas=[SimpleNamespace(unique_id=name) for name in running],
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics={},
        raw_metrics={},
        capacity_adjusted_min_replicas=bounds["min_replicas"],
        capacity_adjusted_max_replicas=bounds["max_replicas"],
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(**bounds),
    )


def asked(policy, target: int, running: tuple[str, ...], workers: int = 0) -> dict[Any, int]:
    """One turn of the control loop."""
    contexts = {
        VERIFIERS: context(VERIFIERS, target, running),
        WORKERS: context(WORKERS, workers, tuple("xyz"[:workers])),
    }
    decisions, _ = policy(contexts)
    return decisions


async def test_what_is_reported_is_decided_and_told(policy, config) -> None:
    """The registry is read, Serve gets numbers within bounds, and Redis the reasons."""
    settings = redis_settings(config)
    async with Registry(settings, "c", ttl_s=60) as registry:
        for name in ("a", "b", "leaving"):
            await registry.announce(report_of(worker_id=name, reported_at_s=time.time()))
    decisions = until(lambda: asked(policy, 2, ("a", "b")))
    assert decisions == {VERIFIERS: 2, WORKERS: 0}

    def told() -> Any:
        asked(policy, 2, ("a", "b"))
        return read_scaling(settings, "c")

    decided = until(told)
    assert decided.verifiers.running == 2
    assert decided.verifiers.reason
    assert decided.draft_workers.reason == "nobody may draft now"
    assert decided.cold_start_s == 7.0


def test_bounds_hold_whatever_serve_has(policy) -> None:
    """Too few or too many, as after a change of the config, come back in one turn."""
    until(lambda: asked(policy, 2, ("a", "b")))
    assert until(lambda: asked(policy, 1, ("a",)).get(VERIFIERS) == 2)
    assert until(lambda: asked(policy, 9, tuple("abcdefghi")).get(VERIFIERS) == 4)


def test_a_redis_that_is_lost_changes_nothing(policy, redis_server) -> None:
    """Nothing raises, which would stop Serve's control loop, and all stay."""
    until(lambda: asked(policy, 3, ("a", "b", "c"), workers=1))
    redis_server.kill()
    deadline_s = time.monotonic() + 3.0
    while time.monotonic() < deadline_s:
        assert asked(policy, 3, ("a", "b", "c"), workers=1) == {VERIFIERS: 3, WORKERS: 1}
        time.sleep(0.2)


def test_a_report_that_breaks_the_scaler_changes_nothing(config, monkeypatch) -> None:
    """A fault of ours is logged, and Serve goes on with what it has."""
    policy = ScalingPolicy(config.model_dump(mode="json"))
    contexts = {VERIFIERS: context(VERIFIERS, 3, ("a", "b", "c"))}
    until(lambda: policy(contexts)[0])
    monkeypatch.setattr(policy._scaler, "decide", lambda _: 1 / 0)
    time.sleep(1.1)
    assert policy(contexts) == ({}, {})


def test_a_step_is_counted_though_another_decision_follows_at_once(config) -> None:
    """All that were told between two looks are counted, and the latest one is shown."""
    told = [
        ScalingReport(at_s=at_s, verifiers=PoolReport(1, before, 2, 2, "more is asked"))
        for at_s, before in ((1.0, 1), (2.0, 2))
    ]
    thread, counted = RegistryThread(config), []
    thread._metrics = SimpleNamespace(saw=counted.append)
    for decided in told:
        thread.tell(decided)
    thread._look(redis_settings(config))
    assert counted == told
    assert read_scaling(redis_settings(config), "c") == told[-1]
