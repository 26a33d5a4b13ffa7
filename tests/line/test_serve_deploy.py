"""A Ray cluster that is started by hand serves what the chart renders, by `serve deploy`."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from chart import CHART, Object, ray_groups, render, serve_config
from chart_tools import helm
from lines import MODEL, Lines
from redis_server import RedisServer

from cluster.leave import process_titles, replicas
from cluster.processes import RUN_ID_VARIABLE, Run, end_processes

pytestmark = pytest.mark.line

BIN = Path(sys.executable).parent
DASHBOARD, GCS = 28265, 26379
# Apart from those of other tests, and from 10002 to 19999, where Ray puts workers.
PORTS = {
    "http": 28000,
    "metrics": 28080,
    "haproxy_metrics": 29101,
    "haproxy_stats": 28404,
    "replicas_from": 29200,
    "replicas_to": 29250,
}
START_S = 240
POD_MODELS = "/var/lib/paceline/models"  # a folder of this machine stands in


def values(redis_url: str) -> Object:
    """The chart's values: a small model, one verifier on a CPU, a Redis outside."""
    return {
        "cluster": {
            "model": {
                "name": MODEL,
                "source": f"builtin:{MODEL}",
                "dtype": "float32",
                "max_model_len": 1024,
            },
            "hardware": {"kind": "cpu"},
            "verifiers": {"eager": True, "drain_s": 1, "longest_stream_s": 5},
            "redis": {"url": redis_url, "password": {"env": "PACELINE_REDIS_PASSWORD"}},
            "ports": PORTS,
        },
        "redis": {"enabled": False, "existingSecret": "redis"},
    }


@dataclass(frozen=True)
class Release:
    """What is rendered, as processes of this machine take it."""

    config: dict[str, Any]
    groups: dict[str, Object]
    environment: dict[str, str]
    folder: Path

    def ray_start(self, group: str, *arguments: str) -> None:
        """`ray start` with the parameters of one group, as KubeRay calls it."""
        start = dict(self.groups[group]["rayStartParams"])
        start["resources"] = yaml.safe_load(start.get("resources", "'{}'"))
        start.pop("dashboard-host", None)  # a pod's own address; here it stays on loopback
        if group != "head":
            start.pop("metrics-export-port")  # one machine has it once
        options = [f"--{name}={value}" for name, value in start.items()]
        # The range is fixed by default, and these are several nodes on one machine.
        options += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
        self.run("ray", "start", *arguments, *options)

    def run(self, *command: str, ok: tuple[int, ...] = (0,)) -> str:
        """What a command of this environment prints; it must end with one of these codes."""
        done = subprocess.run(
            [BIN / command[0], *command[1:]],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in ok, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def release(
    lines: Lines, redis_server: RedisServer, smollm2: Path, tmp_path: Path
) -> Iterator[Release]:
    """A head without cores and a node for a verifier, as the chart has them."""
    lines.end()  # a node that leaves looks at all of its machine's processes
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values(redis_server.settings.url)))
    objects = render(helm("helm4"), file)
    groups = ray_groups(objects)
    container = groups["head"]["template"]["spec"]["containers"][0]
    run_id = uuid.uuid4().hex
    environment = {
        **os.environ,
        **{v["name"]: v["value"] for v in container["env"] if "value" in v},
        "PACELINE_REDIS_PASSWORD": redis_server.settings.password or "",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{DASHBOARD}",
        RUN_ID_VARIABLE: run_id,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    text = yaml.safe_dump(serve_config(objects)).replace(POD_MODELS, str(smollm2.parent))
    config = yaml.safe_load(text)
    config["proxy_location"] = "HeadOnly"  # nodes of one machine share its ports
    config["http_options"]["host"] = "127.0.0.1"
    ray_folder = Path("/tmp") / f"pl-{run_id[:6]}"  # sockets have short paths
    made = Release(config, groups, environment, tmp_path)
    try:
        made.ray_start(
            "head",
            "--head",
            f"--port={GCS}",
            f"--dashboard-port={DASHBOARD}",
            f"--temp-dir={ray_folder}",
            "--ray-client-server-port=26380",
            "--dashboard-agent-listen-port=28365",
        )
        made.ray_start(
            "verifiers", f"--address=127.0.0.1:{GCS}", "--dashboard-agent-listen-port=28366"
        )
        yield made
    finally:
        end_processes(Run(run_id, frozenset()))
        _kill_those_in(tmp_path)
        shutil.rmtree(ray_folder, ignore_errors=True)


def _kill_those_in(folder: Path) -> None:
    """Ray's agents lose the environment by which `end_processes` knows them, not their folder."""
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                process.kill()
                left.append(process)
    psutil.wait_procs(left, timeout=10)


def test_serve_deploy_serves_what_the_chart_renders(release: Release) -> None:
    """Its Serve config, environment and Ray parameters; its own test then asks a question."""
    file = release.folder / "serve.yaml"
    file.write_text(yaml.safe_dump(release.config))
    release.run("serve", "deploy", str(file))
    deadline_s = time.monotonic() + START_S
    url = f"http://127.0.0.1:{PORTS['http']}"
    while True:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/models", timeout=5).status_code == 200:
                break
        told = release.run("serve", "status")
        assert "DEPLOY_FAILED" not in told, told
        assert time.monotonic() < deadline_s, told
        time.sleep(1)
    release.environment.update(BASE_URL=url, MODEL=MODEL)
    answered = release.run("python", str(CHART / "files" / "ask.py"))
    assert "answered with" in answered
    # Its node leaves, as a pod does before it stops: Serve ends the verifier there.
    assert _verifiers(), "the verifier is no process here"
    # The router, beside the head's proxy on this same machine, keeps `leave` waiting to the end: 1.
    release.run("python", "-m", "cluster.leave", "15", ok=(0, 1))
    assert not _verifiers()


def _verifiers() -> list[str]:
    return [title for title in replicas(process_titles()) if "Verifier" in title]
