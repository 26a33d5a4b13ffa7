"""Two verifiers behind the router, and what happens when one dies."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import openai
import psutil
import pytest
from lines import MODEL, Line
from prompts import CODE

pytestmark = pytest.mark.line

RECOVERY_S = 180


def ask(client: openai.OpenAI, number: int) -> str:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Say the number {number}."}],
        max_tokens=8,
        temperature=0,
    )
    return answer.choices[0].message.content


def test_a_burst_is_spread_over_both_verifiers(keyed_line: Line, alpha: str) -> None:
    """Of sixteen requests at once each verifier gets between six and ten."""
    before = keyed_line.finished_by_verifier()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: ask(keyed_line.client(alpha), n), range(16)))
    keyed_line.settle()
    after = keyed_line.finished_by_verifier()
    shares = [after[worker] - before.get(worker, 0) for worker in after]
    assert len(shares) == 2
    assert sum(shares) == 16
    assert min(shares) >= 6


def test_a_killed_verifier_comes_back_and_status_tells(keyed_line: Line, alpha: str) -> None:
    """After kill -9 the other one answers, Serve starts a new one, status shows the restart."""
    victim = keyed_line.status()["verifiers"][0]["report"]
    children = psutil.Process(victim["pid"]).children(recursive=True)
    os.kill(victim["pid"], signal.SIGKILL)
    deadline_s = time.monotonic() + RECOVERY_S
    answered = 0
    while time.monotonic() < deadline_s:
        with suppress(openai.APIError):  # some fail until the router knows
            answered += bool(ask(keyed_line.client(alpha), 7))
        seen = keyed_line.status()
        workers = {verifier["report"]["worker_id"] for verifier in seen["verifiers"]}
        if len(workers) == 2 and victim["worker_id"] not in workers:
            break
    else:
        pytest.fail(f"no new verifier after {RECOVERY_S} s: {seen}")
    assert answered, "the surviving verifier did not answer"
    assert seen["starts"] == 3
    assert "1 restarted" in keyed_line.paceline("status", str(keyed_line.config_file)).stdout
    gone = psutil.wait_procs(children, timeout=30)
    assert not gone[1], "the dead verifier left its engine behind"
    assert ask(keyed_line.client(alpha), 8)


def test_two_verifiers_share_one_draft_worker(keyed_line: Line, alpha: str) -> None:
    """Both have drafts of the same worker accepted, and both say the same."""

    def ask_for_copy(_: int) -> list[int]:
        answer = keyed_line.client(alpha).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Repeat this code, twice:\n{CODE}"}],
            max_tokens=96,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        return list(answer.choices[0].model_extra["token_ids"])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask_for_copy, range(8)))
    assert all(answer == answers[0] for answer in answers)
    keyed_line.settle(1.0)
    assert len(keyed_line.reports("draft")) == 1
    for report in keyed_line.reports():
        assert sum(report["draft_sources"]["worker:prompt_lookup"]["accepted"]) > 50
