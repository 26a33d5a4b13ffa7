"""What must hold in every release, beyond what schemas can say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import (
    CHART,
    Object,
    changed,
    containers,
    one,
    pod_templates,
    ray_groups,
    render,
    serve_config,
)
from chart_tools import helm
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from cluster.environment import fast_path_environment
from configs import ClusterConfig, check, parse_config
from configs.describe import describe_schema
from configs.facts import Facts, MachineFacts


def cluster_config(objects: list[Object]) -> ClusterConfig:
    """The config that the application of a release gets."""
    return parse_config(serve_config(objects)["applications"][0]["args"], "args")


def test_the_application_takes_its_config(objects: list[Object]) -> None:
    """The schema and every check of `paceline check`, as in a pod that has nothing else."""
    config = cluster_config(objects)
    facts = Facts(machine=MachineFacts(memory_bytes=1 << 40, cores=64, avx512=True))
    assert check(config, facts, "args") == []


def test_serve_takes_its_config(objects: list[Object]) -> None:
    """Serve ignores keys of an application that it does not know: there are none."""
    config = serve_config(objects)
    ServeDeploySchema.model_validate(config)
    for application in config["applications"]:
        assert set(application) <= set(ServeApplicationSchema.model_fields)


def test_every_ray_process_has_the_fast_path(objects: list[Object]) -> None:
    """Head and workers have the variables of cluster/environment.py, with its values."""
    config = cluster_config(objects)
    wanted = fast_path_environment(config)
    if config.hardware.kind == "gpu":
        wanted["VLLM_USE_RAY_V2_EXECUTOR_BACKEND"] = "1"
    for name, group in ray_groups(objects).items():
        variables = group["template"]["spec"]["containers"][0]["env"]
        names = [variable["name"] for variable in variables]
        assert len(names) == len(set(names)), name
        found = {v["name"]: v["value"] for v in variables if "value" in v}
        assert wanted.items() <= found.items(), name


def test_there_is_a_place_for_every_verifier_and_draft_worker(objects: list[Object]) -> None:
    """The fewest pods hold the fewest replicas, the most the most, and none is too many."""
    config, groups = cluster_config(objects), ray_groups(objects)
    verifiers = config.verifiers
    ranks = verifiers.tensor_parallel * verifiers.pipeline_parallel
    scaling = getattr(config, "autoscaling", None)
    most = scaling.max_verifiers if scaling else None
    _fits(groups["verifiers"], "verifier_rank", ranks, verifiers.replicas, most, verifiers.cpus)
    split = config.drafting.split
    if split is not None:
        workers = split.workers
        group = groups["draft-workers"]
        most = scaling.max_draft_workers if scaling else None
        _fits(group, "draft_worker", 1, workers.replicas, most, workers.cpus)
        assert float(group["rayStartParams"]["num-gpus"]) >= workers.gpus


def _fits(
    group: Object, resource: str, ranks: int, fewest: int, most: int | None, cpus: float
) -> None:
    start, hosts = group["rayStartParams"], group["numOfHosts"]
    places = json.loads(json.loads(start["resources"]))[resource]
    assert float(start["num-cpus"]) >= places * cpus
    for pods, replicas in (
        (group["minReplicas"], fewest),
        (group["maxReplicas"], most or fewest),
    ):
        together = places * hosts // ranks  # in the pods that belong together
        assert pods * together >= replicas > (pods - 1) * together


def test_limits_are_what_ray_counts_with(objects: list[Object]) -> None:
    """Requests equal limits, and GPUs are as many as Ray is told."""
    for name, group in ray_groups(objects).items():
        container = group["template"]["spec"]["containers"][0]
        resources, start = container["resources"], group["rayStartParams"]
        assert resources["requests"] == resources["limits"], name
        assert float(resources["limits"]["cpu"]) >= float(start["num-cpus"])
        assert resources["limits"].get("nvidia.com/gpu", "0") == start["num-gpus"]


def test_names_are_short_enough(objects: list[Object]) -> None:
    """KubeRay adds to a RayService's name; Kubernetes takes 63 characters."""
    assert len(one(objects, "RayService")["metadata"]["name"]) <= 47
    for found in objects:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", found["metadata"]["name"])


def test_the_longest_name_leaves_room(with_values: Callable[[Object], list[Object]]) -> None:
    """Kubernetes adds eleven characters to a StatefulSet's name and makes a label of it."""
    objects = with_values(changed({"fullnameOverride": "a" * 46}))
    assert len(one(objects, "StatefulSet")["metadata"]["name"]) + 11 <= 63
    assert all(len(o["metadata"]["name"]) <= 63 for o in objects if o["kind"] in ("Service", "Job"))


def test_names_are_apart(objects: list[Object]) -> None:
    """No two objects of a kind have one name."""
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


def test_ports_have_the_names_that_others_look_for(objects: list[Object]) -> None:
    """KubeRay looks for `serve`, the PodMonitor for its own; each has a protocol."""
    config, groups = cluster_config(objects), ray_groups(objects)
    for group in groups.values():
        ports = {p["name"]: p for p in group["template"]["spec"]["containers"][0]["ports"]}
        assert ports["serve"]["containerPort"] == config.ports.http
        assert ports["metrics"]["containerPort"] == config.ports.metrics
        assert all(port["protocol"] == "TCP" for port in ports.values())
        assert group["rayStartParams"]["metrics-export-port"] == str(config.ports.metrics)
    head = {p["name"] for p in groups["head"]["template"]["spec"]["containers"][0]["ports"]}
    for monitor in (o for o in objects if o["kind"] == "PodMonitor"):
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= head


def test_selectors_find_pods(objects: list[Object]) -> None:
    """Every policy, budget, monitor and service selects at least one pod of the release."""
    labels = [template["metadata"]["labels"] for _, template in pod_templates(objects)]
    for found in objects:
        spec = found.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if found["kind"] == "Service":
            selector = {"matchLabels": selector}
        if found["kind"] in ("NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service"):
            assert any(_selects(selector, own) for own in labels), found["metadata"]["name"]
        if found["kind"] == "StatefulSet":
            assert _selects(selector, spec["template"]["metadata"]["labels"])


def _selects(selector: Any, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(e["operator"] == "In" for e in expressions)
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(e["key"]) in e["values"] for e in expressions
    )


def test_budgets_leave_a_pod_and_let_one_go(objects: list[Object]) -> None:
    """At least one pod of each group stays; where there are more, one may go."""
    sizes = {
        "head": 1,
        "redis": 1,
        "verifier": ray_groups(objects)["verifiers"]["minReplicas"],
        "draft-worker": ray_groups(objects).get("draft-workers", {}).get("minReplicas"),
    }
    for budget in (o for o in objects if o["kind"] == "PodDisruptionBudget"):
        pods = sizes[budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]]
        assert budget["spec"]["minAvailable"] == max(1, pods - 1)


def test_secrets_and_volumes_are_there(objects: list[Object], values_file: Path) -> None:
    """What a pod refers to is in the release, or is named in the values."""
    named = values_file.read_text()
    made = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    for name, template in pod_templates(objects):
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
        stateful = one(objects, "StatefulSet") if name.startswith("StatefulSet") else None
        claims = stateful["spec"].get("volumeClaimTemplates", []) if stateful else []
        names = set(volumes) | {claim["metadata"]["name"] for claim in claims}
        for container in containers(template):
            mounts = container.get("volumeMounts", [])
            assert {mount["name"] for mount in mounts} <= names, name
            paths = [mount["mountPath"] for mount in mounts]
            assert len(paths) == len(set(paths)), name
            for variable in container.get("env", []):
                if ref := variable.get("valueFrom", {}).get("secretKeyRef"):
                    _is_there(made, named, ref["name"], ref["key"])
        for volume in volumes.values():
            for source in volume.get("projected", {}).get("sources", []):
                _is_there(
                    made, named, source["secret"]["name"], source["secret"]["items"][0]["key"]
                )
            if secret := volume.get("secret"):
                _is_there(made, named, secret["secretName"], secret["items"][0]["key"])
            if claim := volume.get("persistentVolumeClaim"):
                known = ("PersistentVolumeClaim", claim["claimName"]) in made
                assert known or claim["claimName"] in named
            if config := volume.get("configMap"):
                assert ("ConfigMap", config["name"]) in made


def _is_there(made: dict[tuple[str, str], Object], named: str, secret: str, key: str) -> None:
    if own := made.get(("Secret", secret)):
        assert key in own["data"]
    else:
        assert secret in named and key in named, f"nobody makes secret {secret} with key {key}"


def test_pods_keep_to_the_restricted_standard(objects: list[Object]) -> None:
    """Kubernetes' pod security standard `restricted`, folders of nodes apart."""
    for name, template in pod_templates(objects):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in containers(template):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "hostPort" not in json.dumps(container.get("ports", []))


def test_images_are_pinned(objects: list[Object]) -> None:
    """A tag or a digest, never `latest`."""
    for name, template in pod_templates(objects):
        for container in containers(template):
            image = container["image"]
            assert re.search(r"(:[^/]+|@sha256:[0-9a-f]{64})$", image), name
            assert not image.endswith(":latest")


def test_a_stopping_pod_has_time_for_its_streams(objects: list[Object]) -> None:
    """Grace is longer than the drain that it covers, and so is the old cluster's life."""
    config = cluster_config(objects)
    drain_s = config.verifiers.drain_s + config.verifiers.longest_stream_s
    service = one(objects, "RayService")["spec"]
    assert service["rayClusterDeletionDelaySeconds"] >= drain_s
    for name, group in ray_groups(objects).items():
        spec = group["template"]["spec"]
        if name != "head":
            command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert command == ["python", "-m", "cluster.leave", str(drain_s)]
            assert spec["terminationGracePeriodSeconds"] > drain_s


def test_nobody_but_the_release_reaches_its_sockets(objects: list[Object]) -> None:
    """Where there are policies: outsiders get HTTP; KubeRay and Prometheus what they need."""
    policies = [o for o in objects if o["kind"] == "NetworkPolicy"]
    if not policies:
        pytest.skip("these values have none")
    config = cluster_config(objects)
    for policy in policies:
        for rule in policy["spec"]["ingress"]:
            ports = {port["port"] for port in rule.get("ports", [])}
            peers = rule.get("from")
            if peers is None:
                assert ports == {config.ports.http}
            elif not ports:
                own = [peer["podSelector"]["matchLabels"] for peer in peers]
                assert all("app.kubernetes.io/instance" in labels for labels in own)


def test_the_large_example_is_what_it_says(rendered: Callable[[Path], list[Object]]) -> None:
    """Eight nodes of four GPUs, one verifier each; draft workers on four nodes without."""
    groups = ray_groups(rendered(CHART / "examples" / "llama-70b.yaml"))
    verifiers, workers = groups["verifiers"], groups["draft-workers"]
    assert (verifiers["minReplicas"], verifiers["numOfHosts"]) == (8, 1)
    assert verifiers["rayStartParams"]["num-gpus"] == "4"
    assert (workers["minReplicas"], workers["rayStartParams"]["num-gpus"]) == (4, "0")


def test_two_models_share_a_gateway_and_nothing_else() -> None:
    """Their names are apart; their routes are the gateway's, under paths of their own."""
    folder = CHART / "examples" / "two-models"
    gateway = yaml.safe_load((folder / "gateway.yaml").read_text())["metadata"]["name"]
    names: list[set[tuple[str, str]]] = []
    paths = []
    for model in ("large", "small"):
        objects = render(helm("helm4"), folder / f"{model}.yaml", release=model)
        names.append({(o["kind"], o["metadata"]["name"]) for o in objects})
        route = one(objects, "HTTPRoute")["spec"]
        assert [parent["name"] for parent in route["parentRefs"]] == [gateway]
        paths += [rule["matches"][0]["path"]["value"] for rule in route["rules"]]
        policy = one(objects, "NetworkPolicy", "-paceline")["spec"]["podSelector"]["matchLabels"]
        assert policy["app.kubernetes.io/instance"] == model
    assert not names[0] & names[1]
    assert paths == ["/large", "/small"]


def test_every_key_that_migrate_names_is_one() -> None:
    """docs/migrate.md leads to keys of the config and values of the chart."""
    values = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    known = {setting.key.replace("[]", "") for setting in describe_schema()}
    for line in Path("docs/migrate.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        for key in re.findall(r"`([a-z][\w.]*)`", line.split("|")[2]):
            if key in ("auto", "tensor_parallel", "pipeline_parallel", "replicas", "redis"):
                continue
            key = key.removeprefix("cluster.")
            assert key in known or _leads(values, key.split(".")), f"{key} of {line}"


def _leads(properties: Object, path: list[str]) -> bool:
    found = properties.get(path[0])
    return found is not None and (len(path) == 1 or _leads(found.get("properties", {}), path[1:]))
