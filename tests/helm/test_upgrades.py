"""What an upgrade changes, and the job that carries it out, against a small API server."""

import copy
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chart import DRAFT, Object, changed, one

OLD, NEW = "pl-paceline-old", "pl-paceline-new"
Renders = Callable[[Object], list[Object]]

SPLIT = {
    "cluster.drafting": {
        "max_length": 4,
        "split": {"workers": {"kinds": ["model"], "draft": DRAFT, "gpus": 1}},
    }
}
# What may change in `cluster` while all pods stay, by what it is for.
IN_PLACE: dict[str, Object] = {
    "target weights": {"cluster.model.source": "/models/m-2"},
    "draft weights": {"cluster.drafting.split.workers.draft": DRAFT | {"source": "/models/d-2"}},
    "draft length": {"cluster.drafting.max_length": 7},
    "batch": {"cluster.verifiers.max_sequences": 64},
    "routing": {"cluster.router": {"policy": "prefix_aware"}},
    "adapters": {"cluster.model.adapters": [{"name": "a", "source": "/models/a"}]},
}
OTHER_PODS: dict[str, Object] = {
    "image": {"image": {"tag": "0.2.0"}},
    "memory": {"verifiers": {"memory": "32Gi"}},
    "environment": {"extraEnv": [{"name": "A", "value": "b"}]},
    "ports": {"cluster.ports": {"http": 8123}},
    "width": {"cluster.verifiers.tensor_parallel": 2},
    "tolerations": {"verifiers": {"tolerations": [{"operator": "Exists"}]}},
}


def ray_cluster(objects: list[Object]) -> Object:
    """What KubeRay compares, the numbers of pods apart, which it does not."""
    spec: Object = copy.deepcopy(one(objects, "RayService")["spec"]["rayClusterConfig"])
    for group in spec["workerGroupSpecs"]:
        for number in ("replicas", "minReplicas", "maxReplicas"):
            del group[number]
    return spec


@pytest.mark.parametrize("what", IN_PLACE)
def test_a_change_of_the_cluster_leaves_pods_alone(what: str, with_values: Renders) -> None:
    """Serve gets another config, and replaces its replicas one by one where they are."""
    before, after = with_values(changed(SPLIT)), with_values(changed(SPLIT | IN_PLACE[what]))
    assert ray_cluster(before) == ray_cluster(after)
    configs = [one(objects, "RayService")["spec"]["serveConfigV2"] for objects in (before, after)]
    assert configs[0] != configs[1]


@pytest.mark.parametrize("what", OTHER_PODS)
def test_a_change_of_pods_is_marked(what: str, with_values: Renders) -> None:
    """The head bears another mark, by which the job knows old pods from new ones."""
    before, after = with_values(changed(SPLIT)), with_values(changed(SPLIT | OTHER_PODS[what]))
    assert mark(before) != mark(after)


def test_more_of_the_same_pods_have_the_same_mark(with_values: Renders) -> None:
    """Eight GPUs a node, eight a verifier."""
    wide = SPLIT | {"cluster.verifiers.tensor_parallel": 8}
    before = with_values(changed(wide))
    after = with_values(changed(wide | {"cluster.verifiers.replicas": 3}))
    assert ray_cluster(before) == ray_cluster(after)
    assert mark(before) == mark(after) == told(after)["MARK"]
    assert json.loads(told(before)["BOUNDS"]) == {"verifiers": [1, 1], "draft-workers": [1, 1]}
    assert json.loads(told(after)["BOUNDS"]) == {"verifiers": [3, 3], "draft-workers": [1, 1]}


def mark(objects: list[Object]) -> str:
    """Of the head's pod."""
    head = one(objects, "RayService")["spec"]["rayClusterConfig"]["headGroupSpec"]
    found: str = head["template"]["metadata"]["annotations"]["paceline/spec"]
    return found


def told(objects: list[Object]) -> dict[str, str]:
    """The variables of the job."""
    container = one(objects, "Job", "-upgrade")["spec"]["template"]["spec"]["containers"][0]
    return {variable["name"]: variable["value"] for variable in container["env"]}


@pytest.mark.parametrize(
    ("kind", "mode", "ours", "kuberays"),
    [
        ("gpu", None, "Recreate", "None"),
        ("cpu", None, "NewCluster", "NewCluster"),
        ("gpu", "None", "None", "None"),
        ("gpu", "NewCluster", "NewCluster", "NewCluster"),
    ],
)
def test_the_default_needs_no_gpus_that_are_not_there(
    kind: str, mode: str | None, ours: str, kuberays: str, with_values: Renders
) -> None:
    """On GPUs pods are made anew; a second cluster is for who has room for it."""
    values = changed({"upgrade": {"mode": mode}, "cluster.hardware": {"kind": kind}})
    objects = with_values(values)
    assert told(objects)["MODE"] == ours
    assert one(objects, "RayService")["spec"]["upgradeStrategy"] == {"type": kuberays}


def test_the_job_may_no_more_than_it_does(with_values: Renders) -> None:
    """Its rights are of its namespace, and go with it."""
    objects = with_values(changed({}))
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Job"):
        hook = one(objects, kind, "-upgrade")["metadata"]["annotations"]
        assert hook["helm.sh/hook"] == "post-upgrade,post-rollback"
        assert hook["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    rules = one(objects, "Role", "-upgrade")["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "patch", "delete"}
    assert all("*" not in rule["resources"] for rule in rules)
    off = with_values(changed({"upgrade": {"follow": False}}))
    assert not [o for o in off if o["metadata"]["name"].endswith("-upgrade")]


class Cluster:
    """An API server that has Ray clusters and pods, and keeps what is done to them."""

    def __init__(self) -> None:
        self.clusters: list[Object] = []
        self.pods: list[Object] = []
        self.status: Object = {}
        self.done: list[tuple[str, str, Any]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, name: str, of: str, reason: str = "", head: bool = True, **numbers: int) -> None:
        """A Ray cluster whose pods bear the mark `of`; `reason` keeps them without a node."""
        template = {"metadata": {"annotations": {"paceline/spec": of}}}
        groups = [
            {"groupName": group, "replicas": 1, "minReplicas": 1, "maxReplicas": 1} | numbers
            for group in ("verifiers", "draft-workers")
        ]
        spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}
        self.clusters.append({"metadata": {"name": name}, "spec": spec})
        for group in ("headgroup", "verifiers", "draft-workers") if head else ():
            labels = {"ray.io/cluster": name, "ray.io/group": group}
            labels["ray.io/node-type"] = "head" if group == "headgroup" else "worker"
            metadata: Object = {"name": f"{name}-{group}", "labels": labels}
            if group == "headgroup":
                metadata["annotations"] = {"paceline/spec": of}
            unplaced = {"type": "PodScheduled", "status": "False", "message": reason}
            waits = bool(reason) and group != "headgroup"
            self.pods.append(
                {
                    "metadata": metadata,
                    "spec": {} if waits else {"nodeName": "n"},
                    "status": {"conditions": [unplaced] if waits else []},
                }
            )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if path.endswith("/rayclusters"):
                    assert "originated-from-cr-name%3Dpl-paceline" in query
                    self.answer({"items": cluster.clusters})
                elif path.endswith("/rayservices/pl-paceline"):
                    self.answer({"status": cluster.status})
                else:
                    assert path == "/api/v1/namespaces/models/pods"
                    of = re.search(r"ray.io%2Fcluster%3D([\w-]+)", query)
                    assert of, query
                    labels = [(pod, pod["metadata"]["labels"]) for pod in cluster.pods]
                    found = [p for p, own in labels if own["ray.io/cluster"] == of.group(1)]
                    self.answer({"items": found})

            def do_PATCH(self) -> None:
                self.write("patch")

            def do_DELETE(self) -> None:
                self.write("delete")

            def write(self, verb: str) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                cluster.done.append((verb, self.path.rpartition("/models/")[2], body))
                self.answer({})

            def answer(self, body: Any) -> None:
                assert self.headers["authorization"] == "Bearer t"
                content = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Not in the tests' output."""

        return Handler


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster without anything."""
    made = Cluster()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def follow(cluster: Cluster, with_values: Renders) -> Callable[..., tuple[int, str]]:
    """Runs the job as rendered; its code and what it said."""
    objects = with_values(changed(SPLIT))
    container = one(objects, "Job", "-upgrade")["spec"]["template"]["spec"]["containers"][0]

    def run(**said: str) -> tuple[int, str]:
        here = {"API": cluster.url, "TOKEN": "t", "MARK": "new", "WATCH_S": "1"}
        done = subprocess.run(
            [sys.executable, *container["command"][1:]],
            env={**os.environ, **told(objects), **here, **said},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    return run


Follow = Callable[..., tuple[int, str]]


def test_new_numbers_are_brought_to_the_running_cluster(cluster: Cluster, follow: Follow) -> None:
    """KubeRay would keep the old ones."""
    cluster.add(OLD, "new", replicas=5)
    code, said = follow(BOUNDS='{"verifiers": [2, 4]}')
    assert code == 0 and "numbers of pods" in said
    ((verb, path, patch),) = cluster.done
    assert (verb, path) == ("patch", f"rayclusters/{OLD}")
    at = "/spec/workerGroupSpecs/0"
    assert patch[0] == {"op": "test", "path": f"{at}/groupName", "value": "verifiers"}
    assert {change["path"]: change["value"] for change in patch[1:]} == {
        f"{at}/minReplicas": 2,
        f"{at}/maxReplicas": 4,
        f"{at}/replicas": 4,
    }


def test_numbers_that_the_autoscaler_chose_are_kept(cluster: Cluster, follow: Follow) -> None:
    """As long as they are within the bounds."""
    cluster.add(OLD, "new", replicas=3, minReplicas=1, maxReplicas=4)
    assert follow(BOUNDS='{"verifiers": [1, 4], "draft-workers": [1, 4]}')[0] == 0
    assert cluster.done == []


@pytest.mark.parametrize("mode", ["Recreate", "None"])
def test_pods_that_shall_be_others_go_if_they_may(
    mode: str, cluster: Cluster, follow: Follow
) -> None:
    """`Recreate` deletes the Ray cluster; `None` tells how."""
    cluster.add(OLD, "old")
    code, said = follow(MODE=mode)
    assert code == 0
    assert [(verb, path) for verb, path, _ in cluster.done] == (
        [("delete", f"rayclusters/{OLD}")] if mode == "Recreate" else []
    )
    assert f"delete raycluster {OLD}" in said or f"{OLD}: deleted" in said


@pytest.mark.parametrize("mode", ["Recreate", "None", "NewCluster"])
def test_an_upgrade_in_place_touches_nothing(mode: str, cluster: Cluster, follow: Follow) -> None:
    """Whatever the mode."""
    cluster.add(OLD, "new")
    assert follow(MODE=mode) == (0, f"{OLD}: its pods are as wanted\n")
    assert cluster.done == []


def test_a_cluster_that_is_going_is_left_alone(cluster: Cluster, follow: Follow) -> None:
    """It needs no second order."""
    cluster.add(OLD, "old")
    cluster.clusters[0]["metadata"]["deletionTimestamp"] = "now"
    assert follow(MODE="Recreate") == (0, "")
    assert cluster.done == []


def test_pods_count_and_not_what_kuberay_wrote_of_them(cluster: Cluster, follow: Follow) -> None:
    """A new KubeRay changes a cluster's spec and leaves its pods."""
    cluster.add(OLD, "old")
    head = cluster.clusters[0]["spec"]["headGroupSpec"]
    head["template"]["metadata"]["annotations"]["paceline/spec"] = "new"
    follow(MODE="Recreate")
    assert [verb for verb, *_ in cluster.done] == ["delete"]


def test_a_second_cluster_that_finds_room_is_left_to_kuberay(
    cluster: Cluster, follow: Follow
) -> None:
    """The job ends as soon as all of its pods have a node."""
    cluster.add(OLD, "old")
    cluster.add(NEW, "new")
    code, said = follow(MODE="NewCluster", WATCH_S="60")
    assert code == 0 and "have found their nodes" in said
    assert cluster.done == []


def test_a_blocked_upgrade_is_told_with_its_reason(cluster: Cluster, follow: Follow) -> None:
    """Within the time it is given, with the scheduler's words and the ways out."""
    cluster.add(OLD, "old")
    cluster.add(NEW, "new", reason="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    code, said = follow(MODE="NewCluster")
    assert code == 1
    assert "2 pods of the new Ray cluster found no node" in said
    assert f"{NEW}-verifiers: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu." in said
    assert "helm rollback" in said and "Recreate" in said
    assert follow(MODE="NewCluster", WATCH_S="0")[0] == 0


def test_a_cluster_that_is_not_there_yet_is_no_error(cluster: Cluster, follow: Follow) -> None:
    """KubeRay may be slow, and images large."""
    cluster.add(OLD, "old")
    cluster.add(NEW, "new", head=False)
    code, said = follow(MODE="NewCluster")
    assert code == 0 and "is being made" in said


def test_a_rollback_of_a_blocked_upgrade_ends_it(cluster: Cluster, follow: Follow) -> None:
    """The old cluster is what is wanted again; KubeRay would make a copy of it."""
    cluster.add(OLD, "new")
    cluster.add(NEW, "blocked", reason="no GPU")
    cluster.status = {
        "activeServiceStatus": {"rayClusterName": OLD},
        "pendingServiceStatus": {"rayClusterName": NEW},
    }
    code, said = follow(MODE="NewCluster")
    assert code == 0 and f"{OLD} is what is wanted and serves on; {NEW} is given up" in said
    assert cluster.done == [
        ("patch", "rayservices/pl-paceline/status", {"status": {"pendingServiceStatus": None}})
    ]


def test_the_first_start_is_no_upgrade(cluster: Cluster, follow: Follow) -> None:
    """A cluster that is pending and as wanted is not given up."""
    cluster.add(NEW, "new")
    cluster.status = {"pendingServiceStatus": {"rayClusterName": NEW}}
    assert follow(MODE="NewCluster")[0] == 0
    assert cluster.done == []
