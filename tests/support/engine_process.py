"""A vLLM engine with our proposer, in a process of its own that does what a test asks.

An engine leaves process groups, threads and environment variables behind, so that none
runs in pytest's process. Asks and runs travel as lines of JSON; `engine_main.py` is the
other end.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

MAIN = Path(__file__).with_name("engine_main.py")
VOCABULARY, CONTEXT = 512, 256
"""Of the tiny model that most engines run, tokens."""
FLOAT32 = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "kv_cache_memory_bytes": 256 << 20,
    "max_model_len": 512,
    "max_num_seqs": 64,
}

Worker = Literal["none", "service", "model", "given", "random", "outside", "negative", "long"]
Sampler = Literal["vllm", "accepts_all", "resamples_from_target"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        prompt: Token ids.
        max_tokens: None: as many as the context has room for.
        temperature: 0 is greedy.
        top_k: 0: all.
        n: Answers.
        schema: JSON schema that the answer follows.
        arrives_at: Engine step before which it is added.
        leaves_at: Engine step before which it is aborted.
        xargs: `vllm_xargs`.
        salt: `cache_salt`.
        forget: Empty the engine's own prefix cache before this ask is added.
    """

    prompt: list[int]
    max_tokens: int | None
    temperature: float = 0.0
    top_k: int = 0
    n: int = 1
    schema: dict[str, Any] | None = None
    arrives_at: int = 0
    leaves_at: int | None = None
    xargs: dict[str, str | int] = {}
    salt: str = ""
    forget: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What became of an ask; no tokens where it left."""

    tokens: list[list[int]] = []
    finish_reasons: list[str] = []
    cached_tokens: int = 0


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """The proposer drafted `draft` behind the first `length` tokens of a sequence."""

    length: int
    draft: list[int]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between the first ask's arrival and the last one's end.

    Attributes:
        answers: One an ask.
        proposals: By ask, for those with one answer.
        steps: Engine steps.
        preemptions: Sequences that lost their place in the KV cache.
        drafted: Draft tokens verified, as vLLM counts them.
        accepted: Of these, accepted.
        drafted_by: The same, as the proposer counts them, by source.
        accepted_by: As `drafted_by`.
        violations: Answers of workers that could not be believed.
        failures: Steps without drafts because the proposer failed.
        sessions: That the proposer remembers, after a last tick.
        worker_sessions: That the draft worker remembers, after a last tick.
        model: What the draft model did since it started, by the names of `LookaheadCounts`.
        seconds: From the first step to the last.
        wait_s: Of these, waited for drafts.
    """

    answers: list[Answer]
    proposals: list[list[Proposal]]
    steps: int
    preemptions: int
    drafted: int
    accepted: int
    drafted_by: dict[str, int]
    accepted_by: dict[str, int]
    violations: int
    failures: int
    sessions: int
    worker_sessions: int
    model: dict[str, int] = {}
    seconds: float = 0.0
    wait_s: float = 0.0

    @property
    def tokens(self) -> list[list[list[int]]]:
        """By ask and answer."""
        return [answer.tokens for answer in self.answers]

    @property
    def accepted_from_workers(self) -> int:
        return sum(n for source, n in self.accepted_by.items() if source.startswith("worker:"))


class Job(msgspec.Struct, frozen=True):
    """One line to the engine's process.

    Attributes:
        asks: All of a run.
        worker: Who drafts.
        sampler: vLLM's, or a wrong one.
        endpoint: Of worker `given`.
        kills_at: Engine step before which worker `model` is killed.
    """

    asks: list[Ask]
    worker: Worker
    sampler: Sampler
    endpoint: str = ""
    kills_at: int | None = None


class Start(msgspec.Struct, frozen=True):
    """The first line to the engine's process.

    Attributes:
        model: Folder.
        engine_args: vLLM's.
        max_length: Longest draft; 0: no speculation.
        split: `drafting.split` of the config.
        governor: `drafting.governor.mode`.
        workers: `drafting.split.workers`, with the model of worker `model`.
        patience_s: Longest wait for drafts in a step. None: as configured.
    """

    model: str
    engine_args: dict[str, Any]
    max_length: int
    split: dict[str, Any]
    governor: str
    workers: dict[str, Any]
    patience_s: float | None = 10.0


class EngineDied(Exception):
    """The engine's process ended; holds the end of its log."""


class EngineProcess:
    """A running engine; use it as a context manager.

    Args:
        model: Folder.
        log: File for what it says.
        max_length: Longest draft; 0: no speculation.
        split: `drafting.split` of the config.
        governor: `drafting.governor.mode`; `fixed` drafts whatever it costs.
        workers: `drafting.split.workers`, with the model of worker `model`.
        patience_s: Longest wait for drafts in a step, so that they depend on no timing. None: as
            configured.
        prefix: Command before Python, to keep it to some cores.
        threads: Of its computation.
        engine_args: vLLM's, over `FLOAT32`.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        max_length: int = 0,
        split: dict[str, Any] | None = None,
        governor: str = "fixed",
        workers: dict[str, Any] | None = None,
        patience_s: float | None = 10.0,
        prefix: Sequence[str] = (),
        threads: int = 1,
        **engine_args: Any,
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, str(MAIN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join([str(MAIN.parent), str(MAIN.parents[2])]),
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    # Two threads wait for each other where others use the cores too.
                    "OMP_NUM_THREADS": str(threads),
                },
            )
        arguments = FLOAT32 | engine_args
        self._send(
            Start(
                *(str(model), arguments, max_length, split or {}, governor, workers or {}),
                patience_s,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(
        self,
        asks: Sequence[Ask],
        worker: Worker = "service",
        sampler: Sampler = "vllm",
        endpoint: str = "",
        kills_at: int | None = None,
    ) -> Run:
        """Does all of it, and tells when the last ask has ended.

        Raises:
            EngineDied: As it says.
        """
        self._send(Job(list(asks), worker, sampler, endpoint, kills_at))
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineDied(self._log.read_text(errors="replace")[-4000:])
        return msgspec.json.decode(line, type=Run)

    def _send(self, message: Start | Job) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineDied(self._log.read_text(errors="replace")[-4000:]) from None
