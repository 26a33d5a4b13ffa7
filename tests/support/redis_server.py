"""A real redis-server for tests."""

import socket
import subprocess
import time
from pathlib import Path

import redis

from kvstore.redis_client import RedisSettings, connect_blocking


class RedisServer:
    """A real redis-server on loopback that a test may kill and start again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.settings = RedisSettings(f"redis://127.0.0.1:{self.port}", "a-password-for-tests")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers; what an earlier run held is gone."""
        options = f"--port {self.port} --bind 127.0.0.1 --requirepass {self.settings.password}"
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *options.split(), "--save", "", "--dir", str(self._folder)],
                stdout=log,
            )
        with self.client() as client:
            for _ in range(200):
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.02)
        raise RuntimeError((self._folder / "redis.log").read_text())

    def kill(self) -> None:
        """Gone at once, as if its machine were."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """SIGSTOP has it keep its connections and say nothing, until SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def client(self) -> redis.Redis:
        """For what a test wants to see or to spoil."""
        return connect_blocking(self.settings)
