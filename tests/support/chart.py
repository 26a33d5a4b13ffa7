"""The chart as Helm renders it."""

import copy
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path("helm/paceline").absolute()
RELEASE, NAMESPACE = "pl", "models"
Object = dict[str, Any]

# A release on GPUs, for tests that change something of it.
SHAPE = {
    "attention_heads": 64,
    "kv_heads": 8,
    "layers": 80,
    "hidden_size": 8192,
    "vocab_size": 128256,
    "max_context": 131072,
    "parameters_billions": 8,
}
GPU: Object = {
    "cluster": {
        "model": {"name": "m", "source": "/models/m", "shape": SHAPE},
        "hardware": {"kind": "gpu", "gpu_type": "H100", "gpus_per_node": 8},
        "verifiers": {"cpus": 1, "eager": False},
    },
    "models": {"existingClaim": "models"},
}
DRAFT = {"source": "/models/d", "shape": SHAPE}


class Refused(Exception):
    """Helm would not render these values; the text is its own."""


def values_files() -> list[Path]:
    """Every file of values that the chart ships: those of CI and the examples."""
    found = [*CHART.glob("ci/*-values.yaml"), *CHART.glob("examples/**/*.yaml")]
    return sorted(file for file in found if file.name != "gateway.yaml")


def run_helm(helm: Path, *arguments: str) -> str:
    """What helm prints.

    Raises:
        Refused: It ends with an error.
    """
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def render(helm: Path, *files: Path, release: str = RELEASE) -> list[Object]:
    """Every object of a release with these values.

    Raises:
        Refused: The values can't work.
    """
    values = [argument for file in files for argument in ("--values", str(file))]
    text = run_helm(helm, "template", release, str(CHART), "--namespace", NAMESPACE, *values)
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def changed(changes: dict[str, Any]) -> Object:
    """The values of a GPU release with dotted keys set."""
    values = copy.deepcopy(GPU)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return values


def one(objects: list[Object], kind: str, ending: str = "") -> Object:
    """The only object of a kind whose name ends so."""
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, [o["metadata"]["name"] for o in objects if o["kind"] == kind]
    return found[0]


def serve_config(objects: list[Object]) -> dict[str, Any]:
    """The Serve config of the RayService."""
    config: dict[str, Any] = yaml.safe_load(one(objects, "RayService")["spec"]["serveConfigV2"])
    return config


def ray_groups(objects: list[Object]) -> dict[str, Object]:
    """Ray's groups by name, the head's as `head`."""
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def pod_templates(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod that the release may run, with a name for messages."""
    for name, group in ray_groups(objects).items():
        yield f"RayService/{name}", group["template"]
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] == "Pod":
            yield name, {"metadata": found["metadata"], "spec": found["spec"]}
        elif found["kind"] in ("Job", "StatefulSet", "Deployment", "DaemonSet"):
            yield name, found["spec"]["template"]


def containers(template: Object) -> list[Object]:
    """All containers of a pod, those of its start included."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


Render = Callable[..., list[Object]]
