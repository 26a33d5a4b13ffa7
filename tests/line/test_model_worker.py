"""A draft worker with a model on the real line: it changes no answer, and may die."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from lines import MODEL, Line
from prompts import PROMPTS

pytestmark = pytest.mark.line

OUTPUT_TOKENS, AT_ONCE = 32, 4
SOURCE = "worker:model"
LOADED_S = 240


def answers(line: Line, **wish: Any) -> list[list[int]]:
    """Greedy token ids of every prompt, several at once."""

    def ask(prompt: str) -> list[int]:
        answer = line.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True, "vllm_xargs": wish},
        )
        ids: list[int] = answer.choices[0].model_extra["token_ids"]
        return ids

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, PROMPTS))


def until(line: Line, true: Callable[[list[dict[str, Any]], dict[str, Any]], bool]) -> None:
    """Waits for something of the draft workers' reports and of the verifier's, or fails."""
    deadline_s = time.monotonic() + LOADED_S
    while time.monotonic() < deadline_s:
        workers, verifiers = line.reports("draft"), line.reports()
        if workers and verifiers and true(workers, verifiers[0]):
            return
        time.sleep(1)
    pytest.fail(f"not within {LOADED_S} s: {line.reports('draft')}, {line.reports()}")


def is_drafting(workers: list[dict[str, Any]], verifier: dict[str, Any]) -> bool:
    """The model is loaded, and the verifier asks the worker: `up` waits for neither."""
    asked = verifier["draft_workers"]
    return workers[0]["model"] is not None and asked.get(workers[0]["worker_id"]) == "closed"


@pytest.mark.timeout(900)
def test_a_draft_model_changes_no_answer_and_may_die(model_line: Line) -> None:
    """Drafts of a model in a worker, a copy of the target: most are accepted, and answers are
    those without drafts. While the worker is gone, and when another is there, they are the same.
    """
    until(model_line, is_drafting)
    plain = answers(model_line, paceline_speculation="off")
    before = model_line.accepted_by_source().get(SOURCE, 0)
    assert answers(model_line) == plain
    accepted = model_line.accepted_by_source().get(SOURCE, 0) - before
    assert accepted > len(PROMPTS) * OUTPUT_TOKENS // 3
    [worker] = model_line.reports("draft")
    assert worker["model"]["ready"] > 0, "it never ran ahead"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answers, model_line)
        time.sleep(1)
        os.kill(worker["pid"], signal.SIGKILL)
        assert asked.result() == plain
    until(
        model_line,
        lambda workers, verifier: (
            workers[0]["worker_id"] != worker["worker_id"] and is_drafting(workers, verifier)
        ),
    )
    before = model_line.accepted_by_source().get(SOURCE, 0)
    assert answers(model_line) == plain
    assert model_line.accepted_by_source().get(SOURCE, 0) > before
    assert not psutil.pid_exists(worker["pid"]), "its processes are left behind"
