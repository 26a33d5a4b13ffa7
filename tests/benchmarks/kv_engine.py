"""A vLLM engine that answers one prompt at a time with one token, and says how long that took.

    python tests/benchmarks/kv_engine.py MODEL ENGINE_ARGS     the arguments as one JSON object

Asks and answers are lines of JSON; `Engine` is the other end. Its own prefix cache is emptied
before a prompt where that is asked for, outside of what is timed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

PATIENCE_S = 30.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "PYTHONHASHSEED": "0",
}


class Prompt(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        tokens: Ids.
        forget: Empty the engine's own prefix cache before.
    """

    tokens: list[int]
    forget: bool


class Timed(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        ttft_s: From its arrival in the engine to its token.
        cached: Tokens of the prompt that were found.
        token: The answer.
        lookup_s: Of this, from the first ask of LMCache to its answer; 0 where there was none.
        sharing: Totals of the connector, as in `SharingReport`; empty without one.
    """

    ttft_s: float
    cached: int
    token: int
    lookup_s: float = 0.0
    sharing: dict[str, Any] = {}


class Engine:
    """A running engine; use it as a context manager.

    Args:
        model: Folder.
        log: File for what it says.
        threads: Of its computation.
        engine_args: vLLM's.
    """

    def __init__(self, model: Path, log: Path, threads: int, **engine_args: Any) -> None:
        self._log = log
        root = Path(__file__).parents[2]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(model), json.dumps(engine_args)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ
                | ENVIRONMENT
                | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(root)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, tokens: list[int], forget: bool = True) -> Timed:
        """Answers one prompt.

        Raises:
            RuntimeError: The engine ended; carries the end of its log.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(Prompt(tokens, forget)) + b"\n")
            self._process.stdin.flush()
            return msgspec.json.decode(self._process.stdout.readline(), type=Timed)
        except (BrokenPipeError, msgspec.DecodeError) as error:
            raise RuntimeError(self._log.read_text(errors="replace")[-4000:]) from error


def answer_all(model: str, engine_args: dict[str, Any], asks: BinaryIO, out: BinaryIO) -> None:
    """Answers until there are no more asks."""
    from vllm import LLM, SamplingParams

    engine = LLM(model, seed=0, disable_log_stats=False, **engine_args).llm_engine
    connector = engine.engine_core.engine_core.scheduler.connector
    sampling = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)

    lookups: list[float] = []
    if connector is not None:
        connector._connector_stats.record_lookup = lookups.append

    def forget() -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not engine.reset_prefix_cache():  # while blocks are being stored
            assert time.monotonic() < until_s, "blocks are held for ever"
            engine.step()
            time.sleep(0.01)

    for number, line in enumerate(asks):
        prompt = msgspec.json.decode(line, type=Prompt)
        if prompt.forget:
            forget()
        lookups.clear()
        began_s, found = time.perf_counter(), None
        engine.add_request(str(number), {"prompt_token_ids": prompt.tokens}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                found = Timed(
                    time.perf_counter() - began_s,
                    output.num_cached_tokens or 0,
                    output.outputs[0].token_ids[0],
                    sum(lookups),
                    connector.sharing() if connector is not None else {},
                )
        assert found is not None
        out.write(msgspec.json.encode(found) + b"\n")
        out.flush()
        engine.step()  # tells the ranks what has ended, as a served engine does


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints is for the log
    answer_all(sys.argv[1], json.loads(sys.argv[2]), sys.stdin.buffer, replies)
    os._exit(0)  # nothing here is worth tearing down in order
