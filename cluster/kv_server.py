"""One node's LMCache server: started, watched, started again, and told of in the registry.

`paceline up` starts this beside Redis, and `paceline kv-server FILE` runs it where something else
starts processes. It ends with its server when it is asked to, and leaves no server behind.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

from configs import parse_config
from configs.schema import ClusterConfig
from kvstore.errors import StoreUnavailable
from kvstore.heartbeat import Heartbeat
from kvstore.kv_reports import KvServerReport, TierReport
from kvstore.lmcache_command import LOOPBACK, QUIET, lmcache_command
from kvstore.redis_client import redis_settings
from kvstore.registry import Registry
from replicas.verifier.tier_watch import read_tiers

logger = logging.getLogger(__name__)

WATCH_PERIOD_S: Final = 1.0
HEALTH_TIMEOUT_S: Final = 2.0
START_TIMEOUT_S: Final = 60.0
SILENT_CHECKS: Final = 5
"""So many in a row without an answer, and a server that lives is taken for hung."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
END_GRACE_S: Final = 5.0
HEARTBEAT_PERIOD_S: Final = 1.0
ACCESS_LOG: Final = b"INFO:     127.0.0.1:"


class KvServer:
    """Keeps the LMCache server of this node up.

    Args:
        config: The cluster, with `kv.shared`.
        config_file: The same as JSON, for the server to read.
    """

    def __init__(self, config: ClusterConfig, config_file: Path) -> None:
        self._config = config
        self._config_file = config_file
        self._process: subprocess.Popen[bytes] | None = None
        self._tiers: tuple[TierReport, ...] = ()
        self._is_healthy = False
        self._starts = 0
        self._started_at_s = time.time()
        self._url = f"http://{LOOPBACK}:{config.ports.lmcache_http}"

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._end)
            if (registry := _registry(self._config)) is not None:
                await stack.enter_async_context(registry)
                beat = Heartbeat(registry, self.report, HEARTBEAT_PERIOD_S)
                await stack.enter_async_context(beat)
            pause_s = FIRST_PAUSE_S
            while True:
                began_s = time.monotonic()
                self._start()
                await self._watch()
                self._end()
                if time.monotonic() - began_s > START_TIMEOUT_S:
                    pause_s = FIRST_PAUSE_S
                logger.warning("kv server=restart pause_s=%.1f", pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def report(self) -> KvServerReport:
        """What the registry tells the cluster."""
        host = socket.gethostname()
        return KvServerReport(
            worker_id=f"{host}-{os.getpid()}",
            node_ip=host,
            pid=self._process.pid if self._process is not None else 0,
            is_healthy=self._is_healthy,
            starts=self._starts,
            tiers=list(self._tiers),
            started_at_s=self._started_at_s,
            reported_at_s=time.time(),
        )

    def _start(self) -> None:
        program = Path(sys.executable).parent / "lmcache"
        self._starts += 1
        self._process = subprocess.Popen(
            lmcache_command(self._config, program, self._config_file),
            env=os.environ | QUIET,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=_log_of, args=(self._process,), daemon=True).start()

    async def _watch(self) -> None:
        """Returns when the server is dead, or silent for too long."""
        assert self._process is not None
        began_s, silent = time.monotonic(), 0
        while self._process.poll() is None:
            was, self._is_healthy = self._is_healthy, await asyncio.to_thread(self._answers)
            if self._is_healthy:
                silent = 0
                self._tiers = await asyncio.to_thread(read_tiers, f"{self._url}/status")
                if not was:
                    logger.info("kv server=up start=%d", self._starts)
            elif was or silent or time.monotonic() - began_s > START_TIMEOUT_S:
                silent += 1
                if silent >= SILENT_CHECKS:
                    logger.warning("kv server=silent checks=%d", silent)
                    break
            await asyncio.sleep(WATCH_PERIOD_S)
        self._is_healthy = False
        logger.warning("kv server=lost exit=%s", self._process.poll())

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(  # noqa: S310
                f"{self._url}/healthcheck", timeout=HEALTH_TIMEOUT_S
            ):
                return True
        except OSError:
            return False

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _log_of(process: subprocess.Popen[bytes]) -> None:
    """Passes on what the server says, but for the requests of those who watch it."""
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith(ACCESS_LOG):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def _registry(config: ClusterConfig) -> Registry | None:
    try:
        return Registry(redis_settings(config), config.name)
    except StoreUnavailable as error:
        logger.warning("kv registry=off error=%s", error)
        return None


def serve(config: ClusterConfig, config_file: Path) -> None:
    """Runs this node's server until SIGTERM or SIGINT.

    Args:
        config: The cluster, with `kv.shared`.
        config_file: Where it is put as JSON, for the server to read.
    """

    async def until_asked() -> None:
        running = asyncio.current_task()
        assert running is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        await KvServer(config, config_file).run()

    config_file.write_text(json.dumps(config.model_dump(mode="json")))
    logging.disable(logging.NOTSET)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(until_asked())


if __name__ == "__main__":
    given = Path(sys.argv[1])
    serve(parse_config(json.loads(given.read_text()), source=str(given)), given)
