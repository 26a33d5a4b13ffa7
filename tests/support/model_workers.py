"""Starts and asks the process of `model_worker.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from configs.schema import ClusterConfig
from replicas.draft.vllm_engine import draft_model_environment

MAIN = Path(__file__).with_name("model_worker.py")


class ModelWorker:
    """A running draft worker with a model; use it as a context manager.

    Args:
        config: With `drafting.split` and its token by environment.
        folder: For its config and its log.
        prefix: Command before Python, to keep it to some cores.
        threads: Of its computation.
    """

    def __init__(
        self, config: ClusterConfig, folder: Path, prefix: Sequence[str] = (), threads: int = 1
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "config.json"
        file.write_text(config.model_dump_json())
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, str(MAIN), str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ
                | draft_model_environment(on_gpu=False)
                | {
                    "PYTHONPATH": os.pathsep.join([str(MAIN.parent), str(MAIN.parents[2])]),
                    "OMP_NUM_THREADS": str(threads),
                },
            )
        self._endpoint = ""

    @property
    def endpoint(self) -> str:
        """Where verifiers ask; waits until the model is there."""
        if not self._endpoint:
            self._endpoint = self._line()
        return self._endpoint

    def stats(self) -> dict[str, Any]:
        """What its model did so far, and how many sessions it holds."""
        assert self.endpoint and self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        stats: dict[str, Any] = json.loads(self._line())
        return stats

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(self._log.read_text(errors="replace")[-4000:])
        return line
