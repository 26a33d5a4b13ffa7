"""A Ray cluster that is started by hand, as KubeRay starts what the chart renders."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from chart import Object, ray_groups, render, serve_config
from chart_tools import helm

from cluster.processes import RUN_ID_VARIABLE, Run, end_processes

BIN = Path(sys.executable).parent
DASHBOARD, GCS, FIRST_AGENT = 28265, 26379, 28365
# Apart from those of other tests, and from 10002 to 19999, where Ray puts workers.
PORTS = {
    "http": 28000,
    "metrics": 28080,
    "haproxy_metrics": 29101,
    "haproxy_stats": 28404,
    "replicas_from": 29200,
    "replicas_to": 29250,
}
URL = f"http://127.0.0.1:{PORTS['http']}"
START_S = 240


@dataclass(frozen=True)
class Release:
    """What is rendered, as processes of this machine take it."""

    groups: dict[str, Object]
    environment: dict[str, str]
    folder: Path

    def ray_start(self, group: str, *arguments: str, shows_metrics: bool = False) -> None:
        """`ray start` with the parameters of one group, as KubeRay calls it.

        Args:
            group: The chart's name of it.
            arguments: That pods have, or that keep nodes of one machine apart.
            shows_metrics: At their port, which one machine has once.
        """
        start = dict(self.groups[group]["rayStartParams"])
        start["resources"] = yaml.safe_load(start.get("resources", "'{}'"))
        start.pop("dashboard-host", None)  # a pod's own address; here it stays on loopback
        if not shows_metrics:
            start.pop("metrics-export-port")
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

    def deploy(self, config: dict[str, Any]) -> None:
        """`serve deploy`; returns when the application serves, all of it as the config says."""
        file = self.folder / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        self.run("serve", "deploy", str(file))
        deadline_s = time.monotonic() + START_S
        while True:
            told = self.run("serve", "status")
            assert "DEPLOY_FAILED" not in told, told
            applications = yaml.safe_load(told)["applications"].values()
            if all(application["status"] == "RUNNING" for application in applications):
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{URL}/v1/models", timeout=5).status_code == 200:
                        return
            assert time.monotonic() < deadline_s, told
            time.sleep(1)


def rendered_here(folder: Path, values: Object, replaced: dict[str, str]) -> dict[str, Any]:
    """The Serve config of these values, for nodes that share this machine."""
    text = yaml.safe_dump(serve_config(_objects(folder, values)))
    for old, new in replaced.items():
        text = text.replace(old, new)
    config: dict[str, Any] = yaml.safe_load(text)
    config["proxy_location"] = "HeadOnly"  # nodes of one machine share its ports
    config["http_options"]["host"] = "127.0.0.1"
    return config


def _objects(folder: Path, values: Object) -> list[Object]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return render(helm("helm4"), file)


@contextmanager
def started(folder: Path, values: Object, nodes: list[str], **secrets: str) -> Iterator[Release]:
    """A head, and a node for each group named in `nodes`, as the chart has them.

    Args:
        folder: For files and as the working folder of every process.
        values: Of the chart.
        nodes: A group's name for each node beside the head; the first one shows its metrics.
        secrets: Variables that pods would get from secrets.
    """
    groups = ray_groups(_objects(folder, values))
    container = groups["head"]["template"]["spec"]["containers"][0]
    run_id = uuid.uuid4().hex
    environment = {
        **os.environ,
        **{v["name"]: v["value"] for v in container["env"] if "value" in v},
        **secrets,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{DASHBOARD}",
        RUN_ID_VARIABLE: run_id,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ray_folder = Path("/tmp") / f"pl-{run_id[:6]}"  # sockets have short paths
    release = Release(groups, environment, folder)
    try:
        release.ray_start(
            "head",
            "--head",
            f"--port={GCS}",
            f"--dashboard-port={DASHBOARD}",
            f"--temp-dir={ray_folder}",
            "--ray-client-server-port=26380",
            f"--dashboard-agent-listen-port={FIRST_AGENT}",
        )
        for i, group in enumerate(nodes, 1):
            agent = f"--dashboard-agent-listen-port={FIRST_AGENT + i}"
            release.ray_start(group, f"--address=127.0.0.1:{GCS}", agent, shows_metrics=i == 1)
        yield release
    finally:
        end_processes(Run(run_id, frozenset()))
        _kill_those_in(folder)
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
