"""A real LMCache server of one node, as `paceline up` starts it, that a test may kill."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from listening import free_port
from redis_server import RedisServer

from configs import parse_config
from configs.schema import ClusterConfig
from kvstore.kv_reports import TierReport
from kvstore.lmcache_command import QUIET, lmcache_command, shared_memory_name
from replicas.verifier.engine_options import kv_transfer_config
from replicas.verifier.tier_watch import read_tiers

TOKEN_VARIABLE = "KV_TOKEN_OF_TEST"
PASSWORD_VARIABLE = "KV_PASSWORD_OF_TEST"
PATIENCE_S = 240.0


class LmcacheServer:
    """LMCache with the tiers a test wants; blocks of 32 tokens, chunks of 64.

    Args:
        folder: For its config and log.
        tiers: Behind the memory tier.
        redis: Of a tier in Redis, and of nothing else.
        kv: Over the config's section of this name.
        token: That blocks are sealed with.
        dram_gib: Of the memory tier.
        redis_port: Of a proxy before Redis.
        password: To Redis; None: the right one.
        prefix: Command before the server's own.
    """

    def __init__(
        self,
        folder: Path,
        tiers: tuple[dict[str, Any], ...] = (),
        redis: RedisServer | None = None,
        kv: dict[str, Any] | None = None,
        token: str = "a-token-for-tests",
        dram_gib: float = 0.25,
        redis_port: int | None = None,
        password: str | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._folder, self._prefix = folder, prefix
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.http_port = free_port(), free_port()
        data: dict[str, Any] = {
            "model": {"name": "m", "source": "/m"},
            "hardware": {"kind": "cpu"},
            "kv": {
                "shared": True,
                "chunk_size": 64,
                "shortest_fetch": 64,
                "fetch": "always",
                "wait_max_ms": 20000,
                "token": {"env": TOKEN_VARIABLE},
                "tiers": [{"kind": "dram", "size_gib": dram_gib}, *tiers],
                **(kv or {}),
            },
            "ports": {"lmcache": self.port, "lmcache_http": self.http_port},
        }
        self._environment = {TOKEN_VARIABLE: token}
        if redis is not None:
            url = f"redis://127.0.0.1:{redis_port or redis.port}"
            data["redis"] = {"url": url, "password": {"env": PASSWORD_VARIABLE}}
            self._environment[PASSWORD_VARIABLE] = password or redis.settings.password or ""
        self.config: ClusterConfig = parse_config(data, source="test")
        self._data = data

    @property
    def engine_args(self) -> dict[str, Any]:
        """vLLM's, for engines of this node."""
        return {"kv_transfer_config": kv_transfer_config(self.config)}

    def args_with(self, **kv: Any) -> dict[str, Any]:
        """vLLM's, for an engine of this node whose section `kv` differs."""
        changed = parse_config({**self._data, "kv": {**self._data["kv"], **kv}}, source="test")
        return {"kv_transfer_config": kv_transfer_config(changed)}

    @property
    def log(self) -> str:
        """What it has said."""
        return (self._folder / "lmcache.log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when it is healthy; what was in its memory before is gone."""
        file = self._folder / "config.json"
        file.write_text(json.dumps(self._data))
        program = Path(sys.executable).parent / "lmcache"
        with (self._folder / "lmcache.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *lmcache_command(self.config, program, file)],
                env=os.environ | QUIET | self._environment | {"PYTHONPATH": str(Path.cwd())},
                stdout=log,
                stderr=log,
            )
        until_s = time.monotonic() + PATIENCE_S
        while not self.is_healthy():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(self.log[-4000:])
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthcheck") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Gone at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        Path("/dev/shm", shared_memory_name(self.config)).unlink(missing_ok=True)

    def empty_memory(self) -> None:
        """Forgets what is in its memory, and nothing behind it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}/cache/clear", data=b"", method="POST"
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()

    def tier(self, kind: str) -> TierReport:
        """What a tier says of itself."""
        url = f"http://127.0.0.1:{self.http_port}/status"
        return next(tier for tier in read_tiers(url) if tier.kind == kind)
