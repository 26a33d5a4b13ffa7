"""API servers of the oldest and the newest Kubernetes would take every object."""

from collections.abc import Callable
from pathlib import Path

import pytest
from chart import CHART, Object, one
from kubernetes_schemas import problems


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_kubernetes_and_kuberay_take_every_object(objects: list[Object], version: str) -> None:
    """Strictly: an unknown field is an error. Pods of Ray's groups are judged as pods, too."""
    assert list(problems(objects, version)) == []


@pytest.mark.parametrize(
    ("kind", "field"),
    [("HTTPRoute", "rule"), ("PodMonitor", "endpoints"), ("PrometheusRule", "rules")],
)
def test_a_mistake_for_other_operators_would_be_seen(
    kind: str, field: str, rendered: Callable[[Path], list[Object]]
) -> None:
    """The judge knows their kinds, too."""
    objects = rendered(CHART / "ci" / "everything-values.yaml")
    found = one(objects, kind)
    wrong = found | {"spec": found["spec"] | {field: []}}
    (problem,) = problems([wrong if o is found else o for o in objects], "1.37")
    assert problem.startswith(kind) and field in problem


def test_a_mistake_in_a_pod_of_ray_would_be_seen(objects: list[Object]) -> None:
    """The judge itself works: KubeRay's definition alone lets this pass."""
    group = next(o for o in objects if o["kind"] == "RayService")
    container = group["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    before = container["containers"][0]["ports"]
    container["containers"][0]["ports"] = [{"containerPort": "http", "name": "x"}]
    try:
        assert any("RayService/head" in problem for problem in problems([group], "1.37"))
    finally:
        container["containers"][0]["ports"] = before
