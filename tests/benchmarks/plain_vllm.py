"""A plain vLLM API server with the engine settings of one of our configs: the base to beat."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from cluster.models import resolve_source
from configs.schema import ClusterConfig
from replicas.verifier.engine_options import engine_args, verifier_environment

OURS = ("worker_extension_cls",)

START_TIMEOUT_S = 180


@contextmanager
def plain_vllm(config: ClusterConfig, port: int, log: Path) -> Iterator[str]:
    """Runs `vllm.entrypoints.openai.api_server` on loopback; yields its URL once it answers."""
    source = resolve_source(config.model.source, config.folders.models)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--model", source, "--served-model-name", config.model.name),
        *flags({key: value for key, value in engine_args(config).items() if key not in OURS}),
    ]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command,
            env={**os.environ, **verifier_environment(config)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(server, url, log)
        yield url
    finally:
        server.terminate()
        server.wait(30)


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


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text()[-3000:]}")
