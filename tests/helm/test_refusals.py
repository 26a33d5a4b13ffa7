"""Values that can't work are refused by key and reason, before Kubernetes hears of them."""

from collections.abc import Callable

import pytest
from chart import DRAFT, GPU, Object, Refused, changed

from configs import ConfigError, check, parse_config
from configs.facts import Facts, MachineFacts

MACHINE = MachineFacts(memory_bytes=1 << 40, cores=64, avx512=True)

# Refused by the chart and by `paceline check` alike: what is put into `cluster`, and the reason.
CLUSTER = {
    "heads": ({"verifiers.tensor_parallel": 3}, "3 ranks cannot share 64 attention heads"),
    "stages": ({"verifiers.pipeline_parallel": 64, "model.shape.layers": 40}, "64 stages"),
    "nodes": (
        {"verifiers.tensor_parallel": 16, "hardware.gpus_per_node": 6},
        "16 ranks do not fill nodes of 6 GPUs",
    ),
    "gpu on cpu": ({"hardware": {"kind": "cpu", "gpu_type": "H100"}}, "hardware.gpu_type: is not"),
    "batch": (
        {"verifiers.max_batched_tokens": 8, "verifiers.max_sequences": 16},
        "8 tokens in a step are fewer than its sequences",
    ),
    "block": ({"verifiers.kv_cache": {"block_size": 24}}, "24 is not a multiple of 16"),
    "chunk": ({"kv": {"shared": True, "chunk_size": 100}}, "100 is not a multiple of the block"),
    "tier": ({"kv": {"tiers": [{"kind": "dram"}]}}, "kv.tiers[0].size_gib: is missing"),
    "ports": ({"ports": {"http": 8080, "metrics": 8080}}, "8080 is "),
    "families": (
        {"drafting": {"split": {}, "colocated": {"method": "ngram"}}},
        "drafting: has both colocated and split",
    ),
    "weights": ({"drafting": {"colocated": {"method": "eagle3"}}}, "eagle3 needs weights"),
    "no weights": (
        {"drafting": {"colocated": {"method": "ngram", "draft": DRAFT}}},
        "ngram has no weights",
    ),
    "range": (
        {"drafting": {"colocated": {"method": "ngram", "prompt_lookup_min": 6}}},
        "is more than prompt_lookup_max",
    ),
    "class": (
        {"drafting": {"max_length": 2, "classes": {"batch": 5}, "split": {}}},
        "drafting.classes.batch: 5 is more than drafting.max_length, 2",
    ),
    "no model": (
        {"drafting": {"split": {"workers": {"kinds": ["model"]}}}},
        "kind model needs weights",
    ),
    "unused model": (
        {"drafting": {"split": {"workers": {"draft": DRAFT}}}},
        "workers.draft: is not used",
    ),
    "half gpus": (
        {"drafting": {"split": {"workers": {"kinds": ["model"], "draft": DRAFT, "gpus": 1.5}}}},
        "1.5 is neither a part of one GPU nor whole GPUs",
    ),
    "idle gpu": ({"drafting": {"split": {"workers": {"gpus": 1}}}}, "only kind model uses a GPU"),
    "adapter": (
        {"model.adapters": [{"name": "m", "source": "/models/a"}]},
        "model.adapters[0].name: m is the name of the model",
    ),
    "adapters": (
        {"model.adapters": [{"name": "a", "source": f"/models/{i}"} for i in range(2)]},
        "a is the name of model.adapters[0]",
    ),
    "impatient": (
        {"autoscaling": {"max_verifiers": 2, "keep_s": 10, "window_s": 60}},
        "autoscaling.keep_s: 10 s is shorter than autoscaling.window_s, 60 s",
    ),
    "most": ({"autoscaling": {"max_verifiers": 1}, "verifiers.replicas": 2}, "autoscaling"),
    "nobody's workers": (
        {"autoscaling": {"max_verifiers": 2, "max_draft_workers": 2}},
        "autoscaling.max_draft_workers: is for drafting.split",
    ),
    "blind router": (
        {
            "router": {"policy": "prefix_aware", "shown_header": "x-session-id"},
            "front_door": {"keys": {"file": "/etc/paceline/secrets/keys"}},
        },
        "router.shown_header",
    ),
    "no folder": ({"kv": {"tiers": [{"kind": "disk", "size_gib": 1}]}}, "kv.tiers[0].path: is mis"),
    "idle folder": (
        {"kv": {"tiers": [{"kind": "dram", "size_gib": 1, "path": "/a"}]}},
        "a dram tier has none",
    ),
    "two tiers": (
        {"kv": {"tiers": [{"kind": "dram", "size_gib": 1}] * 2}},
        "kv.tiers[1].kind: there is a dram tier already",
    ),
    "order": (
        {"kv": {"tiers": [{"kind": "redis"}, {"kind": "dram", "size_gib": 1}]}},
        "put the nearest first",
    ),
    "no memory": ({"kv": {"shared": True, "tiers": [{"kind": "redis"}]}}, "have no dram tier"),
    "kind twice": (
        {"drafting": {"split": {"workers": {"kinds": ["ngram_index", "ngram_index"]}}}},
        "listed twice",
    ),
    # These the schema refuses.
    "unknown key": ({"verifiers.replica": 2}, "replica"),
    "text for number": ({"verifiers.replicas": "2"}, "verifiers.replicas"),
    "none": ({"verifiers.replicas": 0}, "verifiers.replicas"),
    "no such method": ({"drafting": {"colocated": {"method": "magic"}}}, "method"),
    "port range": ({"ports": {"http": 80}}, "ports.http"),
    "secret in clear": ({"front_door": {"keys": "sk-1"}}, "front_door.keys"),
    "two places": ({"front_door": {"keys": {"file": "/a", "env": "B"}}}, "front_door.keys"),
    "redis url": ({"redis": {"url": "redis://:secret@host:6379"}}, "redis.url"),
}

# Refused by the chart: what is put into its values, and the reason.
CHART = {
    "unknown value": ({"verifier": {}}, "verifier"),
    "long name": ({"fullnameOverride": "a" * 48}, "at most 47"),
    "long name of redis": ({"fullnameOverride": "a" * 47}, "at most 46 characters with redis"),
    "digit first": ({"fullnameOverride": "7b"}, "a letter first"),
    "latest": ({"image": {"tag": "latest"}}, "image.tag: latest"),
    "latest redis": ({"redis": {"image": {"tag": "latest"}}}, "redis.image.tag: latest"),
    "no host": ({"ingress": {"enabled": True}, "allowAnonymous": True}, "ingress.hosts: is empty"),
    "no gateway": (
        {"httpRoute": {"enabled": True}, "allowAnonymous": True},
        "httpRoute.parentRefs: is empty",
    ),
    "open": (
        {"ingress": {"enabled": True, "hosts": ["a.b"]}},
        "cluster.front_door.keys: is missing",
    ),
    "loopback": ({"cluster.ports": {"host": "127.0.0.1"}}, "is reached by no other pod"),
    "no gateway class": (
        {"upgrade": {"mode": "NewClusterWithIncrementalUpgrade"}},
        "upgrade.gatewayClassName: is missing",
    ),
    "steps": (
        {
            "upgrade": {
                "mode": "NewClusterWithIncrementalUpgrade",
                "gatewayClassName": "g",
                "stepSizePercent": 50,
            }
        },
        "50 is more than maxSurgePercent, 20",
    ),
    "upgrade without autoscaler": (
        {
            "upgrade": {"mode": "NewClusterWithIncrementalUpgrade", "gatewayClassName": "g"},
            "rayAutoscaler": {"enabled": False},
        },
        "rayAutoscaler.enabled: false",
    ),
    "two redis": ({"cluster.redis": {"url": "redis://a:1"}}, "there are two Redis then"),
    "two passwords": ({"cluster.redis": {"password": {"env": "A"}}}, "has its own"),
    "no redis": ({"redis": {"enabled": False}}, "the cluster needs a Redis"),
    "keys nowhere": (
        {"cluster.front_door": {"keys": {"file": "/etc/paceline/secrets/keys"}}},
        "no pod has /etc/paceline/secrets/keys",
    ),
    "variable nowhere": (
        {"cluster.front_door": {"domain_salt": {"env": "SALT"}}},
        "no pod has the variable SALT",
    ),
    "file twice": (
        {"secretFiles": [{"secret": "a", "key": "k"}, {"secret": "b", "key": "k"}]},
        "is there already",
    ),
    "no volume": ({"models": {"existingClaim": ""}}, "nothing is mounted at /models"),
    "two volumes": ({"models": {"existingClaim": "a", "hostPath": "/b"}}, "not several"),
    "hub": ({"cluster.model.source": "org/model"}, "pods reach no model hub"),
    "other folder": ({"cluster.model.source": "/data/m"}, "/data/m is on no volume"),
    "ranks": (
        {"verifiers": {"ranksPerPod": 3}, "cluster.verifiers.tensor_parallel": 4},
        "do not fill pods of 3",
    ),
    "ranks of a node": ({"verifiers": {"ranksPerPod": 16}}, "more than a node has"),
    "disk": (
        {"cluster.kv": {"shared": True, "tiers": [{"kind": "disk", "size_gib": 9, "path": "/kv"}]}},
        "it needs hostPath or volume",
    ),
    "idle disk": ({"kvDisk": {"hostPath": "/kv"}}, "kvDisk: is not used"),
    "fast path": (
        {"extraEnv": [{"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "0"}]},
        "RAY_SERVE_ENABLE_HA_PROXY is set by the chart",
    ),
    "ray's redis": (
        {"head": {"extraEnv": [{"name": "RAY_REDIS_ADDRESS", "value": "a:1"}]}},
        "head.extraEnv: RAY_REDIS_ADDRESS",
    ),
    "no operator": ({"networkPolicy": {"operator": []}}, "KubeRay could not reach Ray"),
    "ingress beside a gateway of KubeRay's": (
        {
            "upgrade": {"mode": "NewClusterWithIncrementalUpgrade", "gatewayClassName": "g"},
            "ingress": {"enabled": True, "hosts": ["a.b"]},
            "allowAnonymous": True,
        },
        "ingress.enabled: true, but with upgrade.mode NewClusterWithIncrementalUpgrade",
    ),
    "ray's port": ({"cluster.ports": {"http": 8265}}, "cluster.ports.http: Ray has 8265"),
    "another ray": ({"cluster.ray": {"address": "ray:6379"}}, "the chart makes the Ray cluster"),
    "upgrade mode": ({"upgrade": {"mode": "Rolling"}}, "mode"),
    "size": ({"head": {"memory": "lots"}}, "memory"),
}


Renders = Callable[[Object], list[Object]]


def test_the_values_that_are_changed_work(with_values: Renders) -> None:
    """Each refusal is for the change alone."""
    assert with_values(GPU)


@pytest.mark.parametrize("case", CLUSTER)
def test_the_chart_and_check_refuse_the_same(case: str, with_values: Renders) -> None:
    """A cluster that can't be is refused by both, and the chart says why."""
    changes, reason = CLUSTER[case]
    values = changed({f"cluster.{key}": value for key, value in changes.items()})
    with pytest.raises(Refused) as refused:
        with_values(values)
    assert reason.replace(".", "/") in str(refused.value) or reason in str(refused.value)
    with pytest.raises(ConfigError):
        if found := check(parse_config(values["cluster"], "a"), Facts(machine=MACHINE), "a"):
            raise ConfigError(found)


@pytest.mark.parametrize("case", CHART)
def test_the_chart_refuses(case: str, with_values: Renders) -> None:
    """What is wrong with a release, by key."""
    changes, reason = CHART[case]
    with pytest.raises(Refused) as refused:
        with_values(changed(changes))
    assert reason in str(refused.value)


def test_every_problem_is_told_at_once(with_values: Renders) -> None:
    """Not only the first."""
    with pytest.raises(Refused) as refused:
        with_values(changed({"image": {"tag": "latest"}, "cluster.verifiers.tensor_parallel": 3}))
    assert "image.tag" in str(refused.value) and "3 ranks" in str(refused.value)
