"""`build_app` as `serve run` and `serve deploy` call it: in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.environment import FAST_PATH

LOCAL: dict[str, Any] = yaml.safe_load(Path("configs/local.yaml").read_text())
BUILD = """
import json, sys
from cluster.app import build_app
application = build_app(json.loads(sys.argv[1]))
verifiers = application._bound_deployment
router = application._ingress_request_router._bound_deployment
policy = verifiers._deployment_config.request_router_config.get_request_router_class().__name__
scaling = verifiers.init_kwargs["draft_workers"]._bound_deployment._deployment_config
scaling = scaling.autoscaling_config
bounds = [scaling.min_replicas, scaling.max_replicas] if scaling else None
print("BUILT", json.dumps([verifiers.name, verifiers.num_replicas, router.name, policy, bounds]))
"""


def build(config: dict[str, Any], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Builds in a fresh process, because Ray Serve reads the environment at import."""
    return subprocess.run(
        [sys.executable, "-c", BUILD, json.dumps(config)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize(
    ("changes", "class_name", "bounds"),
    [
        ({}, "LeastLoadedRouter", None),
        (
            {
                "router": {"policy": "prefix_aware"},
                "autoscaling": {"max_verifiers": 1, "max_draft_workers": 3},
            },
            "PrefixAwareRouter",
            [1, 3],
        ),
    ],
)
def test_the_same_yaml_builds_an_application(
    changes: dict[str, Any], class_name: str, bounds: list[int] | None
) -> None:
    """The config's keys as arguments give a verifier deployment behind our router, and draft
    workers as many as there are to be, or between two numbers.
    """
    built = build({**LOCAL, **changes}, FAST_PATH)
    (line,) = [line for line in built.stdout.splitlines() if line.startswith("BUILT")]
    name, replicas, router, ranks, between = json.loads(line.removeprefix("BUILT"))
    assert ranks == class_name
    assert (name, replicas) == ("Verifier:smollm2-135m-instruct", 1)
    assert router == "IngressRouter"
    assert between == bounds


def test_without_the_fast_path_nothing_is_built() -> None:
    """The error names the variables, instead of a slow path that nobody notices."""
    built = build(LOCAL, dict.fromkeys(FAST_PATH, "0"))
    assert built.returncode != 0
    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in built.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verifier": {}}, "did you mean `verifiers`"),
        ({"kv": {"shared": True, "chunk_size": 48}}, "kv.chunk_size"),
    ],
)
def test_a_config_that_cannot_work_builds_nothing(change: dict[str, Any], said: str) -> None:
    """Unknown keys and what is not built yet are told by key."""
    built = build({**LOCAL, **change}, FAST_PATH)
    assert built.returncode != 0
    assert said in built.stderr
