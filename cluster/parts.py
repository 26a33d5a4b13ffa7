"""The programs of a local cluster: how each is started, and when it counts as started."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cluster.environment import ray_token_file
from cluster.errors import PartFailed, PartMissing
from cluster.processes import busy_ports, spawn
from configs.schema import ClusterConfig
from kvstore.redis_client import password_file

LOOPBACK = "127.0.0.1"
RAY_START_TIMEOUT_S = 60.0
REDIS_START_TIMEOUT_S = 10.0
POLL_S = 0.05

Started = Callable[[int], None]


def start_redis(
    config: ClusterConfig, folder: Path, environment: dict[str, str], started: Started
) -> None:
    """Starts the private Redis on loopback, with a password made for this run.

    Args:
        config: The cluster.
        folder: Its run folder.
        environment: Of the new process.
        started: Told the pid before it is known whether Redis comes up.

    Raises:
        PartMissing: redis-server is not installed.
        PartFailed: It did not listen in time; carries its log.
    """
    binary = shutil.which("redis-server")
    if binary is None:
        raise PartMissing("redis-server", "install it with `make redis` (Debian: redis-server)")
    password = secrets.token_urlsafe(24)
    write_secret(password_file(folder), password)
    settings = folder / "redis" / "redis.conf"
    write_secret(
        settings,
        f"bind {LOOPBACK}\nport {config.ports.redis}\nprotected-mode yes\n"
        f'requirepass {password}\ndir {settings.parent}\nsave ""\nappendonly no\n'
        # Redis' own evictions are announced to nobody, so it must not evict.
        f"maxmemory {config.redis.memory_mib}mb\nmaxmemory-policy noeviction\n",
    )
    log = folder / "logs" / "redis.log"
    process = spawn([binary, str(settings)], environment, log)
    started(process.pid)
    _wait_for(
        "Redis", process, log, lambda: bool(busy_ports([config.ports.redis])), REDIS_START_TIMEOUT_S
    )


def start_ray(
    config: ClusterConfig, folder: Path, environment: dict[str, str], started: Started
) -> None:
    """Starts a Ray head with a token of its own; arguments as for `start_redis`.

    Raises:
        PartFailed: Ray did not come up; carries its log.
    """
    write_secret(ray_token_file(folder), secrets.token_hex(32))
    ports, log = config.ports, folder / "logs" / "ray.log"
    command = [
        str(Path(sys.executable).parent / "ray"),
        "start",
        "--head",
        "--block",
        f"--port={ports.ray}",
        f"--temp-dir={folder / 'ray'}",
        f"--metrics-export-port={ports.metrics}",
        # Their defaults are fixed: they would meet ports of the config or of a second cluster.
        "--include-log-monitor=false",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--ray-client-server-port={_free_port()}",
        f"--dashboard-agent-listen-port={_free_port()}",
        "--disable-usage-stats",
    ]
    if ports.dashboard is None:
        command.append("--include-dashboard=false")
    else:
        command += [
            "--include-dashboard=true",
            f"--dashboard-host={LOOPBACK}",
            f"--dashboard-port={ports.dashboard}",
        ]
    process = spawn(command, environment, log)
    started(process.pid)
    _wait_for(
        "Ray",
        process,
        log,
        lambda: "Ray runtime started" in log.read_text(errors="replace"),
        RAY_START_TIMEOUT_S,
    )


def start_kv_server(
    config: ClusterConfig, folder: Path, environment: dict[str, str], started: Started
) -> None:
    """Starts what keeps this node's LMCache server up (`cluster/kv_server.py`).

    It is not waited for: the verifiers take longer, and wait for it before their engines start.
    Arguments as for `start_redis`.
    """
    file = folder / "kv" / "config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "cluster.kv_server", str(file)]
    started(spawn(command, environment, folder / "logs" / "kv.log").pid)


def _wait_for(
    part: str,
    process: subprocess.Popen[bytes],
    log: Path,
    is_up: Callable[[], bool],
    timeout_s: float,
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise PartFailed(part, "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def write_secret(file: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    file.touch(mode=0o600)
    file.write_text(text)
