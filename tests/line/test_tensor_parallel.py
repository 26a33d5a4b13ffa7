"""Split drafting with a tensor-parallel verifier: only its first rank talks to draft workers."""

from pathlib import Path
from typing import Any

import pytest
from lines import Line, Lines, base_config
from tiny_models import make_tiny_llama

pytestmark = pytest.mark.line

PROMPTS = ("ab ab ab ab ab ab", "one two three one two three one two", "?", "Hello there, you.")
OUTPUT_TOKENS = 96


def config(model: Path, ranks: int, drafting: dict[str, Any]) -> dict[str, Any]:
    """A cluster that serves `model` on `ranks` ranks."""
    sections = base_config(drafting=drafting)
    sections["model"] = {
        "name": "tiny",
        "source": str(model),
        "dtype": "float32",
        "max_model_len": 512,
    }
    sections["verifiers"] |= {"tensor_parallel": ranks, "cpus": 1}
    return sections


def greedy_answers(line: Line) -> list[list[int]]:
    """The token ids that follow each prompt."""
    return [
        line.client()
        .completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        .choices[0]
        .model_extra["token_ids"]
        for prompt in PROMPTS
    ]


def test_two_ranks_with_drafts_say_what_one_says_without(lines: Lines, tmp_path: Path) -> None:
    """The same tokens from TP=2 with a draft worker and TP=1 without; drafts are accepted."""
    model = make_tiny_llama(tmp_path / "tiny", heads=8, kv_heads=4)
    split = {
        "max_length": 4,
        "governor": {"mode": "fixed"},
        "split": {"workers": {"replicas": 1, "cpus": 0}},
    }
    two = lines.get("two-ranks", config(model, 2, split))
    before = two.accepted_by_source()
    drafted = greedy_answers(two)
    accepted = two.accepted_by_source()
    assert accepted["worker:prompt_lookup"] - before.get("worker:prompt_lookup", 0) > 20
    assert drafted == greedy_answers(lines.get("one-rank", config(model, 1, {})))
