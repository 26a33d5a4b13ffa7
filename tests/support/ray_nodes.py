"""Several Ray nodes on this machine, each under an address of its own, as machines would be."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from listening import free_port

from cluster.environment import haproxy_folder, local_environment, ray_token_file
from cluster.leave import node_of, replicas
from cluster.processes import RUN_ID_VARIABLE, Run, end_processes, spawn
from configs import parse_config

BIN: Final = Path(sys.executable).parent
GCS_PORT: Final = 16390
HEAD: Final = "127.0.0.1"
START_S: Final = 60.0


@dataclass(frozen=True)
class RayNode:
    """One node: its address, the processes that make it up, and the first of them."""

    address: str
    run: Run
    process: subprocess.Popen[bytes]

    def titles(self) -> list[str]:
        """What its processes call themselves."""
        found = []
        for process in self.run.processes():
            with suppress(psutil.Error):
                found.append(" ".join(process.cmdline()))
        return found

    def verifiers(self) -> list[str]:
        """Titles of the verifiers on it."""
        return [title for title in replicas(self.titles()) if "Verifier" in title]

    def ranks(self) -> list[str]:
        """Titles of the ranks of verifiers that are actors of their own."""
        return [title for title in self.titles() if "CpuRank" in title or "Worker_TP" in title]

    def node_id(self) -> str:
        """Ray's id of it."""
        return node_of(self.titles())

    def kill(self) -> None:
        """Ends all of it at once, as if its power were cut."""
        for process in self.run.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


class RayNodes:
    """A Ray cluster that `paceline up` joins: a head that takes part, and nodes with one core.

    Args:
        config: Of the cluster that will join, with this one's address and token.
        head: Address of the head.
    """

    def __init__(self, config: dict[str, Any], head: str = HEAD) -> None:
        self._gcs = f"{head}:{GCS_PORT}"
        self._base = Path("/tmp") / f"pl-{os.getpid()}-n"  # sockets have short paths
        self.folder = self._base / "r"
        for part in ("ray", "tmp"):
            (self.folder / part).mkdir(parents=True)
        haproxy_folder(self.folder).mkdir()
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_hex(32))
        apart = {**config, "ray": {}}  # their files are their own, as of a local cluster
        self._environment = {
            **os.environ,
            **local_environment(parse_config(apart, "test"), self.folder),
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.nodes: dict[str, RayNode] = {}

    @property
    def token_file(self) -> Path:
        """Holds the token by which the nodes know each other."""
        return ray_token_file(self.folder)

    @staticmethod
    def joined(head: str = HEAD) -> dict[str, Any]:
        """The section `ray` of a config that joins this cluster."""
        token = ray_token_file(Path("/tmp") / f"pl-{os.getpid()}-n" / "r")
        return {"address": f"{head}:{GCS_PORT}", "token": {"file": str(token)}}

    def start(
        self, name: str, address: str, cpus: int, zone: str = "", before: Sequence[str] = ()
    ) -> RayNode:
        """Starts a node and returns when it has joined; the first one is the head.

        Args:
            name: Of its log.
            address: Its own.
            cpus: What Ray may use of it.
            zone: Of availability.
            before: Words before the command.
        """
        run_id = uuid.uuid4().hex
        log = self.folder / f"{name}.log"
        options = [
            f"--node-ip-address={address}",
            f"--num-cpus={cpus}",
            # Ranges that are fixed by default would meet on one machine.
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--metrics-export-port={free_port()}",
            "--disable-usage-stats",
        ]
        if zone:
            options.append(f"--labels=ray.io/availability-zone={zone}")
        if self.nodes:
            options.append(f"--address={self._gcs}")
        else:
            options += [
                "--head",
                f"--port={GCS_PORT}",
                f"--temp-dir={self.folder / 'ray'}",
                f"--ray-client-server-port={free_port()}",
                "--include-dashboard=false",
                "--include-log-monitor=false",
            ]
        # Of several addresses of one machine vLLM would take the same everywhere.
        environment = {**self._environment, RUN_ID_VARIABLE: run_id, "VLLM_HOST_IP": address}
        command = [*before, str(BIN / "ray"), "start", "--block", *options]
        process = spawn(command, environment, log)
        node = RayNode(address, Run(run_id, frozenset((process.pid,))), process)
        self.nodes[name] = node
        deadline_s = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text(errors="replace"):
            alive = process.poll() is None and time.monotonic() < deadline_s
            assert alive, log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        return node

    def at(self, address: str) -> RayNode:
        """The node of an address."""
        return next(node for node in self.nodes.values() if node.address == address)

    def drain(self, node: RayNode, within_s: float) -> None:
        """Tells Ray that a node leaves, as `cluster.leave` does on the node itself."""
        code = f"from cluster.leave import tell_ray; tell_ray({node.node_id()!r}, {within_s})"
        environment = {**self._environment, "RAY_ADDRESS": self._gcs}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]

    def controller_log(self) -> str:
        """What Serve's controller logged."""
        logs = self.folder / "ray" / "session_latest" / "logs" / "serve"
        return "".join(file.read_text() for file in logs.glob("controller_*.log"))

    def end(self) -> None:
        """Ends all nodes, the head last, and removes their folders."""
        for node in reversed(self.nodes.values()):
            end_processes(node.run)
            node.process.wait(START_S)
        for folder in (haproxy_folder(self.folder), self._base):
            shutil.rmtree(folder, ignore_errors=True)
