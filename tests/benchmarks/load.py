"""Load from vLLM's own benchmark client, one call a measurement."""

import contextlib
import io
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser


@dataclass(frozen=True)
class Load:
    """A closed loop of `concurrency` clients over prompts of random tokens, or over `prompts`.

    `xargs` are the `vllm_xargs` of each request.
    """

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    prompts: tuple[str, ...] = ()
    xargs: Mapping[str, str | int] = field(default_factory=dict)


def run_load(url: str, model: str, tokenizer: str, load: Load, seed: int) -> dict[str, Any]:
    """Runs the load; returns vLLM's result (throughput in tokens/s, times in ms).

    The same `seed` gives every arm the same prompts. Requests that were refused
    or broke off make the measurement fail: a slow arm must not look fast by refusing.
    Each run has a process of its own, for vLLM's client keeps 20 MB of each.
    """
    fork = get_context("fork")
    ours, its = fork.Pipe(duplex=False)
    process = fork.Process(target=_send, args=(its, (url, model, tokenizer, load, seed)))
    process.start()
    its.close()
    try:
        told: dict[str, Any] | str = ours.recv()
    except EOFError:
        told = "vLLM's client ended without a result"
    process.join()
    if isinstance(told, str):
        raise RuntimeError(told)
    return told


def _send(its: Connection, arguments: tuple[str, str, str, Load, int]) -> None:
    try:
        its.send(_run(*arguments))
    except Exception as error:
        its.send(f"{type(error).__name__}: {error}")


def _run(url: str, model: str, tokenizer: str, load: Load, seed: int) -> dict[str, Any]:
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in load.prompts)
        file.flush()
        args = parser.parse_args(
            [
                *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url),
                *("--model", model, "--served-model-name", model, "--tokenizer", tokenizer),
                *(_dataset(load, file.name)),
                *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
                *("--seed", str(seed), "--temperature", "0", "--disable-tqdm", "--ignore-eos"),
                *(("--extra-body", json.dumps({"vllm_xargs": load.xargs})) if load.xargs else ()),
                *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"),
            ]
        )
        with contextlib.redirect_stdout(io.StringIO()):
            result: dict[str, Any] = main(args)
    if result["completed"] != load.requests:
        raise RuntimeError(f"{load.requests - result['completed']} of {load.requests} failed")
    return result


def _dataset(load: Load, file: str) -> tuple[str, ...]:
    output_tokens = str(load.output_tokens)
    if load.prompts:
        return (
            *("--dataset-name", "custom", "--dataset-path", file),
            *("--custom-output-len", output_tokens, "--skip-chat-template"),
        )
    return (
        *("--dataset-name", "random", "--random-input-len", str(load.input_tokens)),
        *("--random-output-len", output_tokens),
    )
