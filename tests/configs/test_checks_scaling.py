"""Each rule about scaling and joined nodes refuses what cannot work and lets pass what can."""

import pytest

from configs.checks import scaling
from configs.checks.scaling import (
    joined_nodes_reach_redis,
    letting_go_waits,
    most_is_not_fewer,
    token_has_a_cluster,
)

FREE = {"verifiers.cpus": 0.1, "drafting.split.workers.cpus": 0}
MOST, MOST_WORKERS = "autoscaling.max_verifiers", "autoscaling.max_draft_workers"
WORKERS = "drafting.split.workers.replicas"
ELSEWHERE = {"ray.address": "head:6380", "redis.url": "redis://elsewhere:6379"}
TOKEN = {"ray.token": {"env": "T"}}

CASES = [
    (
        most_is_not_fewer,
        {MOST: 1, "verifiers.replicas": 2},
        MOST,
        "1 is below verifiers.replicas 2",
        {**FREE, MOST: 2, "verifiers.replicas": 2},
    ),
    (
        most_is_not_fewer,
        {MOST: 1, MOST_WORKERS: 2},
        MOST_WORKERS,
        "is for drafting.split, which there is not",
        {**FREE, MOST: 1},
    ),
    (
        most_is_not_fewer,
        {MOST: 1, MOST_WORKERS: 2, WORKERS: 3},
        MOST_WORKERS,
        "2 is below drafting.split.workers.replicas 3",
        {**FREE, MOST: 1, MOST_WORKERS: 3, WORKERS: 0},
    ),
    (
        letting_go_waits,
        {MOST: 1, "autoscaling.keep_s": 30},
        "autoscaling.keep_s",
        "30 s is shorter than autoscaling.window_s, 60 s",
        {MOST: 1, "autoscaling.keep_s": 30, "autoscaling.window_s": 30},
    ),
    (
        joined_nodes_reach_redis,
        {"ray.address": "head:6380"},
        "redis.url",
        "name a server that all nodes reach",
        ELSEWHERE,
    ),
    (
        token_has_a_cluster,
        TOKEN,
        "ray.token",
        "there is no ray.address",
        {**ELSEWHERE, **TOKEN},
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right"), CASES)
def test_a_rule_names_the_key_and_the_remedy(judge, rule, wrong, key, says, right) -> None:
    """A rule refuses the wrong config by its key, in words that say what to do."""
    found = dict(judge(wrong, {}, rule))
    assert says in found.get(key, "nothing found")


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right"), CASES)
def test_a_config_that_works_passes_all_rules(judge, rule, wrong, key, says, right) -> None:
    """With the remedy taken, no rule of any file has anything to say."""
    assert judge(right, {}) == []


def test_every_rule_has_a_case() -> None:
    """No rule of this file goes untested."""
    assert {case[0] for case in CASES} == set(scaling.RULES)


def test_room_is_kept_for_what_may_come(judge) -> None:
    """Cores, memory and ports are judged by the largest number of each."""
    changes = {MOST: 40, "ports.replicas_to": 30010}
    found = dict(judge(changes, {}))
    assert "too few ports for autoscaling.max_verifiers 40" in found["ports.replicas_to"]
    assert "need 40 cores" in found["verifiers.cpus"]


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"redis.url": "redis://elsewhere:6379"}, False),
        (ELSEWHERE, False),
        ({**ELSEWHERE, "ray.on_head": True}, True),
        ({"ray.on_head": False}, False),
    ],
)
def test_the_head_is_used_only_where_it_is_everything(make_config, changes, may) -> None:
    """With other nodes, the head holds Ray's own parts and nothing of ours, unless asked to."""
    assert make_config(changes).may_use_head is may
