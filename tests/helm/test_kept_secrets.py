"""Secrets that the chart makes survive upgrades: Helm finds them in the cluster and keeps them.

The cluster here is a server that knows secrets and nothing else.
"""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, NAMESPACE, RELEASE, Object, run_helm
from chart_tools import helm

# Helm 4 asks for every kind of a release whether the cluster has it.
KINDS = {
    "v1": ["Secret", "ConfigMap", "Service", "ServiceAccount", "Pod"],
    "apps/v1": ["StatefulSet"],
    "batch/v1": ["Job"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
    "ray.io/v1": ["RayService"],
}


def plural(kind: str) -> str:
    """As it stands in a path."""
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")


def discovery() -> dict[str, Any]:
    """What an API server tells of itself, by path."""
    groups = []
    told: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    for version, kinds in KINDS.items():
        resources = [
            {"name": plural(kind), "kind": kind, "namespaced": True, "verbs": ["get"]}
            for kind in kinds
        ]
        listed = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        told[f"/apis/{version}" if "/" in version else f"/api/{version}"] = listed
        if "/" in version:
            named = {"groupVersion": version, "version": version.partition("/")[2]}
            group = {"name": version.partition("/")[0], "versions": [named]}
            groups.append(group | {"preferredVersion": named})
    told["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return told


ROOT = discovery()
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
NOT_FOUND |= {"reason": "NotFound"}


class Cluster:
    """An API server with secrets."""

    def __init__(self, folder: Path) -> None:
        self.secrets: dict[str, Object] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                folder, _, name = path.rpartition("/")
                if folder == f"/api/v1/namespaces/{NAMESPACE}/secrets":
                    found = cluster.secrets.get(name)
                else:
                    found = ROOT.get(path)
                body = json.dumps(found or NOT_FOUND).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Not in the tests' output."""

        return Handler

    def stop(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without secrets."""
    started = Cluster(tmp_path)
    yield started
    started.stop()


def secrets_of_release(version: str, cluster: Cluster) -> dict[str, Object]:
    """The secrets of an install or upgrade, as Helm would send them."""
    text = run_helm(
        helm(version),
        *("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=server"),
        "--disable-openapi-validation",
        *("--kubeconfig", str(cluster.kubeconfig)),
        *("--values", str(CHART / "examples" / "cpu-only.yaml")),
    )
    objects = [found for found in yaml.safe_load_all(text) if found and found["kind"] == "Secret"]
    return {found["metadata"]["name"]: found for found in objects}


def owned(secret: Object) -> Object:
    """As Helm leaves it in the cluster."""
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    annotations = secret["metadata"]["annotations"] | owner
    return secret | {"metadata": secret["metadata"] | {"annotations": annotations}}


@pytest.mark.parametrize("version", ["helm3", "helm4"])
def test_secrets_are_made_once(version: str, cluster: Cluster) -> None:
    """Random at first; the same ever after, whichever of them is there already."""
    first, other = (secrets_of_release(version, cluster) for _ in range(2))
    assert set(first) == {"pl-paceline-redis", "pl-paceline-token", "pl-paceline-ray-token"}
    for name, secret in first.items():
        (value,) = secret["data"].values()
        assert len(base64.b64decode(value)) >= 32
        assert other[name]["data"] != secret["data"]
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    cluster.secrets = {name: owned(secret) for name, secret in first.items()}
    assert {n: s["data"] for n, s in secrets_of_release(version, cluster).items()} == {
        n: s["data"] for n, s in first.items()
    }
