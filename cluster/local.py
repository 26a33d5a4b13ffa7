"""A whole cluster on this machine: Redis, Ray, HAProxy and the Serve application.

`LocalCluster.up` starts what is missing in order, tells what it does, and takes
everything back when any step fails or is interrupted. `down` ends what `up`
started and nothing else.
"""

import importlib
import os
import secrets
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from cluster.environment import haproxy_folder, local_environment, ray_token_file
from cluster.errors import AlreadyStarting, ClusterError, OtherClusterRuns, PortsTaken
from cluster.models import ensure_model
from cluster.parts import start_kv_server, start_ray, start_redis, write_secret
from cluster.processes import (
    RUN_ID_VARIABLE,
    busy_ports,
    end_processes,
    remove_abandoned_memory,
)
from cluster.state import RunState, read_state
from configs.schema import ClusterConfig
from configs.secrets import read_secret
from kvstore.cluster_token import needs_token, token_file
from replicas.verifier.engine_options import engine_args

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Report = Callable[[str], None]


class LocalCluster:
    """The cluster that `config` describes, running or not."""

    def __init__(self, config: ClusterConfig, config_file: str = "") -> None:
        self.config = config
        self.config_file = config_file
        self.folder = config.folders.run.expanduser() / config.name

    @property
    def url(self) -> str:
        """Where the OpenAI API answers: HAProxy runs beside Ray's head."""
        host, address = self.config.ports.host, self.config.ray.address
        if host in EVERYWHERE:
            host = address.rpartition(":")[0] if address else LOOPBACK
        return f"http://{host}:{self.config.ports.http}"

    def running(self) -> RunState | None:
        """The state of the run that is up, or None."""
        state = read_state(self.folder)
        return state if state is not None and state.is_running else None

    def adopt_environment(self) -> None:
        """Lets this process talk to the cluster's Ray; call before Ray is imported."""
        os.environ.update(local_environment(self.config, self.folder))

    def up(self, report: Report) -> RunState:
        """Starts the cluster and returns when it answers; reuses one that runs.

        Args:
            report: Told each step as it begins, in a few words.

        Raises:
            PartMissing: redis-server is not installed.
            PortsTaken: A port is in use; names its owner.
            OtherClusterRuns: One of this name runs from a different config.
            PartFailed: A part did not start; carries its own last words.
            ModelError: The model could not be made.
        """
        self._refuse_folder_of_others()
        lock = FileLock(f"{self.folder}.lock")
        try:
            with lock.acquire(timeout=0):
                return self._up(report)
        except Timeout:
            raise AlreadyStarting(self.config.name) from None
        finally:
            if not self.folder.exists():
                Path(lock.lock_file).unlink(missing_ok=True)

    def _up(self, report: Report) -> RunState:
        state = self.running()
        if state is not None and state.ready:
            if state.config != self.config.model_dump(mode="json"):
                raise OtherClusterRuns(self.config.name, state.config_file)
            return state
        if (stale := read_state(self.folder)) is not None:
            report("clearing what an earlier run left behind")
            self._clear(stale)
        source = self.config.model.source
        if source.startswith("builtin:"):
            ensure_model(
                source.removeprefix("builtin:"), self.config.folders.models.expanduser(), report
            )
        engine_args(self.config)  # refuses what is not built yet before anything is started
        self._refuse_taken_ports()
        run_id = uuid.uuid4().hex
        self.adopt_environment()
        environment = {**os.environ, RUN_ID_VARIABLE: run_id}
        # Without bytecode each of a dozen processes imports three times as long.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            return self._start_parts(run_id, environment, report)
        except BaseException:
            report("taking everything back")
            with uninterrupted():
                self._clear(read_state(self.folder))
            raise

    def down(self) -> bool:
        """Ends the cluster and removes its folder; False if there was nothing."""
        state = read_state(self.folder)
        if state is None and not self.folder.exists():
            return False
        if self.config.ray.address is not None:
            self._leave()
        Path(f"{self.folder}.lock").unlink(missing_ok=True)
        with uninterrupted():
            self._clear(state)
        return state is not None

    def _leave(self) -> None:
        """Ends the application on a Ray cluster that goes on; one that is gone took it along."""
        self.adopt_environment()
        deploy = importlib.import_module("cluster.deploy")
        with suppress(ConnectionError):
            deploy.leave(self.config)

    def _start_parts(self, run_id: str, environment: dict[str, str], report: Report) -> RunState:
        self.folder.mkdir(parents=True, mode=0o700)
        for part in ("redis", "ray", "logs", "tmp"):
            (self.folder / part).mkdir()
        haproxy_folder(self.folder).mkdir(exist_ok=True, mode=0o700)
        state = RunState(
            run_id=run_id,
            config_file=self.config_file,
            config=self.config.model_dump(mode="json"),
            started_at_s=time.time(),
        )
        state.save(self.folder)
        if needs_token(self.config):
            write_secret(token_file(self.folder), secrets.token_hex(32))

        def redis_started(pid: int) -> None:
            nonlocal state
            state = replace(state, redis_pid=pid)
            state.save(self.folder)

        def ray_started(pid: int) -> None:
            nonlocal state
            state = replace(state, ray_pid=pid)
            state.save(self.folder)

        def kv_started(pid: int) -> None:
            nonlocal state
            state = replace(state, kv_pid=pid)
            state.save(self.folder)

        if self.config.redis.url is None:
            report("starting Redis")
            start_redis(self.config, self.folder, environment, redis_started)
        if self.config.kv.shared:
            report("starting LMCache")
            start_kv_server(self.config, self.folder, environment, kv_started)
        with ThreadPoolExecutor(1) as meanwhile:
            # It imports Ray Serve and vLLM, which takes as long as Ray takes to start.
            deploying = meanwhile.submit(importlib.import_module, "cluster.deploy")
            if self.config.ray.address is None:
                report("starting Ray")
                start_ray(self.config, self.folder, environment, ray_started)
            elif self.config.ray.token is not None:
                write_secret(ray_token_file(self.folder), read_secret(self.config.ray.token))
        deploying.result().deploy(self.config, self.url, report)
        state = replace(state, ready=True)
        state.save(self.folder)
        return state

    def _refuse_folder_of_others(self) -> None:
        runs = self.folder.parent
        try:
            runs.mkdir(parents=True, exist_ok=True)
            if runs.stat().st_uid != os.getuid():
                raise PermissionError(f"{runs} belongs to another user")
        except OSError as error:
            raise ClusterError(f"folders.run: {error}; set it to a folder of your own") from error

    def _refuse_taken_ports(self) -> None:
        ports = self.config.ports
        wanted = {}
        if self.config.ray.address is None:
            wanted = {
                "ports.http": ports.http,
                "ports.ray": ports.ray,
                "ports.metrics": ports.metrics,
                "ports.haproxy_metrics": ports.haproxy_metrics,
                "ports.haproxy_stats": ports.haproxy_stats,
            }
            if ports.dashboard is not None:
                wanted["ports.dashboard"] = ports.dashboard
        if self.config.redis.url is None:
            wanted["ports.redis"] = ports.redis
        if self.config.kv.shared:
            wanted |= {"ports.lmcache": ports.lmcache, "ports.lmcache_http": ports.lmcache_http}
        owners = {owner.port: owner for owner in busy_ports(list(wanted.values()))}
        if owners:
            raise PortsTaken(
                [f"{key}: {owners[port]}" for key, port in wanted.items() if port in owners]
            )

    def _clear(self, state: RunState | None) -> None:
        if state is not None:
            end_processes(state.run)
            remove_abandoned_memory(since_s=state.started_at_s)
        for folder in (self.folder, haproxy_folder(self.folder)):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # other clusters' folders are there
            self.folder.parent.rmdir()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds off Ctrl-C and SIGTERM: half-ended is the one state nobody wants."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
