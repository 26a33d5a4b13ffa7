"""Load from vLLM's own benchmark client, one call a measurement."""

import contextlib
import io
import logging
from dataclasses import dataclass
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser


@dataclass(frozen=True)
class Load:
    """A closed loop of `concurrency` clients over prompts of random tokens."""

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int


def run_load(url: str, model: str, tokenizer: str, load: Load, seed: int) -> dict[str, Any]:
    """Runs the load; returns vLLM's result (throughput in tokens/s, times in ms).

    The same `seed` gives every arm the same prompts. Requests that were refused
    or broke off make the measurement fail: a slow arm must not look fast by refusing.
    """
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    args = parser.parse_args(
        [
            *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url),
            *("--model", model, "--served-model-name", model, "--tokenizer", tokenizer),
            *("--dataset-name", "random", "--random-input-len", str(load.input_tokens)),
            *("--random-output-len", str(load.output_tokens), "--ignore-eos"),
            *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
            *("--seed", str(seed), "--temperature", "0", "--disable-tqdm"),
            *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"),
        ]
    )
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        result: dict[str, Any] = main(args)
    if result["completed"] != load.requests:
        raise RuntimeError(f"{load.requests - result['completed']} of {load.requests} failed")
    return result
