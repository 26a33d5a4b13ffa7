"""Carries an upgrade or a rollback to where KubeRay does not, and says what hinders it.

KubeRay changes neither the number of a running cluster's pods nor, without a second cluster, what
they are. This runs after Helm has sent everything, in the cluster, with rights to the Ray clusters
and pods of its namespace. What it finds:

    pods are as wanted        their fewest and most are brought to the Ray cluster
    mode Recreate             a Ray cluster of other pods is deleted; KubeRay makes it anew
    mode None                 the command for that is told
    modes with a new cluster  pods that find no node within WATCH_S are an error, with the reason

It is told by its environment: NAME of the RayService, NAMESPACE, MODE, MARK of the wanted pods,
BOUNDS as JSON (group: fewest and most), WATCH_S, and, elsewhere than in a pod, API and TOKEN.
"""

import json
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = os.environ.get("API", "https://kubernetes.default.svc")
NAME, NAMESPACE, MODE = os.environ["NAME"], os.environ["NAMESPACE"], os.environ["MODE"]
MARK, MARKED_BY = os.environ["MARK"], "paceline/spec"
BOUNDS: dict[str, list[int]] = json.loads(os.environ["BOUNDS"])
WATCH_S = float(os.environ["WATCH_S"])
ORIGIN = "ray.io/originated-from-cr-name"
RAY, PODS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}", f"/api/v1/namespaces/{NAMESPACE}/pods"

Object = dict[str, Any]


class Blocked(Exception):
    """The upgrade does not go on by itself; the text says why, and what to do."""


def say(text: str) -> None:
    """One line of the job's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def clusters(api: httpx.Client) -> list[Object]:
    """The Ray clusters of the RayService that are not on their way out."""
    answer = api.get(f"{RAY}/rayclusters", params={"labelSelector": f"{ORIGIN}={NAME}"})
    found: list[Object] = answer.raise_for_status().json()["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def pods(api: httpx.Client, cluster: Object) -> list[Object]:
    """Its pods."""
    params = {"labelSelector": f"ray.io/cluster={cluster['metadata']['name']}"}
    found: list[Object] = api.get(PODS, params=params).raise_for_status().json()["items"]
    return found


def mark_of(cluster: Object, its_pods: list[Object]) -> str:
    """What its head's pod is marked with; without one, what it would be.

    The pod counts: KubeRay may change a cluster's spec and leave its pods.
    """
    heads = [p for p in its_pods if p["metadata"]["labels"].get("ray.io/node-type") == "head"]
    pod = heads[0] if heads else cluster["spec"]["headGroupSpec"]["template"]
    return str((pod["metadata"].get("annotations") or {}).get(MARKED_BY, ""))


def new_bounds(cluster: Object) -> list[Object]:
    """The JSON patch that gives its groups the wanted numbers of pods."""
    patch = []
    for i, group in enumerate(cluster["spec"].get("workerGroupSpecs") or ()):
        name = group["groupName"]
        if name not in BOUNDS:
            continue
        fewest, most = BOUNDS[name]
        now = group.get("replicas") or 0
        wanted = {
            "minReplicas": fewest,
            "maxReplicas": most,
            "replicas": min(max(now, fewest), most),
        }
        at = f"/spec/workerGroupSpecs/{i}"
        changes = [
            {"op": "add", "path": f"{at}/{key}", "value": value}
            for key, value in wanted.items()
            if group.get(key) != value
        ]
        if changes:
            patch += [{"op": "test", "path": f"{at}/groupName", "value": name}, *changes]
    return patch


def carry(api: httpx.Client) -> None:
    """What the mode asks for, for each Ray cluster there is."""
    found = clusters(api)
    marks = {one["metadata"]["name"]: mark_of(one, pods(api, one)) for one in found}
    for cluster in found:
        name = cluster["metadata"]["name"]
        if marks[name] == MARK:
            if patch := new_bounds(cluster):
                headers = {"content-type": "application/json-patch+json"}
                answer = api.patch(f"{RAY}/rayclusters/{name}", json=patch, headers=headers)
                answer.raise_for_status()
                say(f"{name}: its numbers of pods are {json.dumps(BOUNDS)} now")
            else:
                say(f"{name}: its pods are as wanted")
        elif MODE == "Recreate":
            api.delete(f"{RAY}/rayclusters/{name}").raise_for_status()
            say(f"{name}: deleted, because its pods shall be others; KubeRay makes them anew")
        elif MODE == "None":
            say(f"{name}: keeps its pods until `kubectl -n {NAMESPACE} delete raycluster {name}`")
    if MODE.startswith("NewCluster") and any(mark != MARK for mark in marks.values()):
        settle(api, marks)


def settle(api: httpx.Client, marks: dict[str, str]) -> None:
    """Sees a second Ray cluster come up, or takes one back that nobody needs any more."""
    service = api.get(f"{RAY}/rayservices/{NAME}").raise_for_status().json()
    status = service.get("status") or {}
    active = (status.get("activeServiceStatus") or {}).get("rayClusterName")
    pending = (status.get("pendingServiceStatus") or {}).get("rayClusterName")
    if MODE == "NewCluster" and pending and marks.get(active or "") == MARK:
        # After a rollback KubeRay would wait for a copy of what serves already. An incremental
        # upgrade it takes back by itself.
        body = {"status": {"pendingServiceStatus": None}}
        headers = {"content-type": "application/merge-patch+json"}
        answer = api.patch(f"{RAY}/rayservices/{NAME}/status", json=body, headers=headers)
        answer.raise_for_status()
        say(f"{active} is what is wanted and serves on; {pending} is given up")
        return
    watch(api)


def watch(api: httpx.Client) -> None:
    """Returns when the new Ray cluster's pods have nodes, or none of them was refused one.

    Raises:
        Blocked: Some have found none when the time is over.
    """
    deadline_s = time.monotonic() + WATCH_S
    needed = {group for group, (fewest, _) in BOUNDS.items() if fewest}
    while time.monotonic() < deadline_s:
        new = [pod for one in clusters(api) if mark_of(one, []) == MARK for pod in pods(api, one)]
        groups = {pod["metadata"]["labels"].get("ray.io/group") for pod in new}
        homeless = [pod for pod in new if reason(pod)]
        if needed <= groups and all(pod["spec"].get("nodeName") for pod in new):
            say(f"the {len(new)} pods of the new Ray cluster have found their nodes")
            return
        time.sleep(min(2, WATCH_S / 10))
    if WATCH_S and homeless:
        told = "\n  ".join(f"{pod['metadata']['name']}: {reason(pod)}" for pod in homeless[:5])
        raise Blocked(
            f"{len(homeless)} pods of the new Ray cluster found no node in {WATCH_S:.0f} s:\n  "
            f"{told}\nThe old one serves on. Make room and it goes on by itself; `helm rollback` "
            "takes it back; upgrade.mode Recreate needs no room. Where nodes are made on demand, "
            "upgrade.watchSeconds may be longer."
        )
    say("the new Ray cluster is being made; `kubectl get rayservice` tells of it")


def reason(pod: Object) -> str:
    """Why the scheduler finds no node for a pod; empty where it has not said so."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "no reason given")
    return ""


def main() -> int:
    """0 when all was carried, 1 when it is blocked."""
    token = os.environ.get("TOKEN") or (ACCOUNT / "token").read_text()
    its_own = None if "API" in os.environ else ACCOUNT / "ca.crt"
    trusted = ssl.create_default_context(cafile=its_own)
    headers = {"authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=API, headers=headers, verify=trusted, timeout=30) as api:
            carry(api)
    except Blocked as blocked:
        say(str(blocked))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
