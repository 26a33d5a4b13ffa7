"""A real redis-server for tests."""

import subprocess
import time
from pathlib import Path

import redis
from listening import free_port

from kvstore.redis_client import RedisSettings, connect_blocking


class RedisServer:
    """A real redis-server that a test may kill and start again.

    Args:
        folder: For its files.
        certificate: It talks TLS only, with this one; its key lies beside it as `.key`.
        host: Address it listens on.
    """

    def __init__(
        self, folder: Path, certificate: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.port = free_port(host)
        scheme = "rediss" if certificate else "redis"
        self.settings = RedisSettings(f"{scheme}://{host}:{self.port}", "a-password-for-tests")
        self._host = host
        self._certificate = certificate
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers; what an earlier run held is gone."""
        options = f"--bind {self._host} --requirepass {self.settings.password}"
        if self._certificate is None:
            options += f" --port {self.port}"
        else:
            options += (
                f" --port 0 --tls-port {self.port} --tls-auth-clients no"
                f" --tls-cert-file {self._certificate}"
                f" --tls-key-file {self._certificate.with_suffix('.key')}"
                f" --tls-ca-cert-file {self._certificate}"
            )
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
