"""A plain vLLM API server with the engine settings of one of our configs: the base to beat."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from cluster.models import resolve_source
from configs.schema import ClusterConfig
from replicas.verifier.engine_options import engine_args, verifier_environment

OURS = ("worker_extension_cls",)

START_TIMEOUT_S = 180


class PlainVllm:
    """`vllm.entrypoints.openai.api_server` on loopback. Entering starts it and does not wait."""

    def __init__(self, config: ClusterConfig, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._config, self._port, self._log = config, port, log

    def __enter__(self) -> Self:
        model = self._config.model
        args = {key: value for key, value in engine_args(self._config).items() if key not in OURS}
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--model", resolve_source(model.source, self._config.folders.models)),
            *("--served-model-name", model.name),
            *flags(args),
        ]
        with self._log.open("wb") as out:
            self._server = subprocess.Popen(
                command,
                env={**os.environ, **verifier_environment(self._config)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(30)

    def wait(self) -> None:
        """Returns when it answers; a RuntimeError carries its log where it can't."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._server.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise RuntimeError(f"vLLM did not start:\n{self._log.read_text()[-3000:]}")


def flags(args: dict[str, Any]) -> Iterator[str]:
    """Engine arguments as vLLM's command line takes them."""
    for key, value in args.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif isinstance(value, dict | list):
            yield from (f"--{name}", json.dumps(value))
        else:
            yield from (f"--{name}", str(value))
