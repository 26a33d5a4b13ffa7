"""A short look at a GPU: is the plug-in free where it drafts nothing, and worth it where it does?

    make gpu-check                         MODEL=/models/small-one make gpu-check

Two engines side by side on one GPU, at vLLM's defaults but for the memory they share: plain vLLM,
and vLLM with split drafting and a prompt-lookup worker. At most eight minutes. Arms:

    plain         vLLM without speculation, twice (A/A)
    zero drafts   with the plug-in, every request says that it wants no drafts
    governor      with the plug-in, drafts as long as pays

`--cpu` runs the same on a CPU at a small size, to see that the check itself works.
"""

import argparse
import os
import secrets
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from engine_process import Ask, EngineProcess
from harness import Bench, Comparison, Metric, console, machine
from prompts import CODE, FACTS
from transformers import AutoTokenizer

from cluster.models import ensure_model, resolve_source
from configs.sections.places import FoldersConfig

PLAIN, AGAIN, ZERO, GOVERNOR = "plain", "plain again", "zero drafts", "governor"
THROUGHPUT = Metric("output throughput", "tokens/s", higher_is_better=True)
COPIES, CHAT = "copies", "chat"
PROMPTS = {
    COPIES: f"Repeat this text word for word, three times:\n{CODE}\n{FACTS}",
    CHAT: "Write a short story about a cyclist who gets lost in the mountains.",
}
BUILTIN = "builtin:smollm2-135m-instruct"
ON_GPU: dict[str, Any] = {
    "dtype": "auto",
    "enforce_eager": False,
    "block_size": 16,
    "kv_cache_memory_bytes": None,
    "gpu_memory_utilization": 0.42,
    "max_model_len": 4096,
}
ON_CPU: dict[str, Any] = {"max_model_len": 2048}


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=BUILTIN, help="a folder; default: the builtin model")
    parser.add_argument("--cpu", action="store_true", help="only to see that the check works")
    args = parser.parse_args()
    if not args.cpu:
        import torch

        if not torch.cuda.is_available():
            parser.exit(1, "gpu-check: torch sees no GPU here; --cpu tries the check without one\n")
        console.print(f"  {torch.cuda.get_device_name()}, {machine()}")
    folders = FoldersConfig()
    if args.model == BUILTIN:
        ensure_model(BUILTIN.partition(":")[2], folders.models.expanduser(), console.print)
    model = Path(resolve_source(args.model, folders.models))
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = {kind: tokenizer(text)["input_ids"] for kind, text in PROMPTS.items()}
    os.environ["DRAFT_TOKEN_OF_TEST"] = secrets.token_hex(16)
    engine_args, batches, tokens, repetitions = ON_GPU, (1, 16), 256, 7
    if args.cpu:
        engine_args, batches, tokens, repetitions = ON_CPU, (1, 4), 32, 3
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        engines = {}
        split = {"local_lookup": False}
        with_plugin = {"max_length": 5, "governor": "auto", "split": split, "patience_s": None}
        lines: dict[str, dict[str, Any]] = {PLAIN: {}, GOVERNOR: with_plugin}
        for name, drafting in lines.items():
            console.print(f"  starting vLLM, {name}")
            engines[name] = stack.enter_context(
                EngineProcess(model, Path(logs) / f"{name}.log", **drafting, **engine_args)
            )

        def measure(arm: str, cell: str, _: int) -> dict[str, float]:
            kind, batch = cell.split(", ")
            engine = engines[PLAIN if arm in (PLAIN, AGAIN) else GOVERNOR]
            xargs: dict[str, str | int] = {"paceline_speculation": "off"} if arm == ZERO else {}
            # Each begins in its own way, so that no two are one text.
            asks = [
                Ask(prompt=[*asked[kind][: n + 1], *asked[kind]], max_tokens=tokens, xargs=xargs)
                for n in range(int(batch))
            ]
            run = engine.run(asks, "none" if engine is engines[PLAIN] else "service")
            made = sum(len(text) for answers in run.tokens for text in answers)
            return {THROUGHPUT.name: made / run.seconds}

        cells = [f"{kind}, {batch}" for kind in PROMPTS for batch in batches]
        bench = Bench("gpu-check", [PLAIN, AGAIN, ZERO, GOVERNOR], cells, [THROUGHPUT])
        for arm in bench.arms:
            measure(arm, cells[0], 0)
        bench.run(measure, repetitions)
    bench.finish(
        [
            Comparison(ZERO, PLAIN, AGAIN, THROUGHPUT, 0.97),
            Comparison(GOVERNOR, PLAIN, AGAIN, THROUGHPUT, 0.97),
        ],
        ["on a CPU this says only that the check works"] if args.cpu else [],
    )


if __name__ == "__main__":
    main()
