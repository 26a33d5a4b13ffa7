"""The prefix-aware router on the real line: requests go where their prefix is."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from lines import MODEL, PORTS, Line
from prompt_corpus import CHATS, COMPLETIONS

from replicas.verifier.request_headers import ROUTE
from router.prompt import PromptReader, PromptSettings

pytestmark = pytest.mark.line

BLOCK = 32
RECOVERY_S = 180
TOKENIZE_TAKES = {
    *("messages", "prompt", "tools", "chat_template_kwargs", "add_special_tokens"),
    *("add_generation_prompt", "continue_final_message"),
}


class Conversation:
    """Grows by a question and an answer at a time."""

    def __init__(self, line: Line, key: str, topic: str) -> None:
        self._client = line.client(key)
        rules = " ".join(f"Rule {n} of {topic}: be {topic}." for n in range(25))
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": rules}]
        self.prompt_tokens = 0

    def ask(self, question: str, **more: Any) -> int:
        """Asks, and returns how many prompt tokens were found cached."""
        self.messages.append({"role": "user", "content": question})
        answer = self._client.chat.completions.create(
            model=MODEL, messages=self.messages, max_tokens=8, temperature=0, **more
        )
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        self.prompt_tokens = answer.usage.prompt_tokens
        details = answer.usage.prompt_tokens_details
        return details.cached_tokens or 0 if details else 0

    def ask_and_find_warm(self, question: str, **more: Any) -> bool:
        """Asks, and says whether all whole blocks of the turns before were found cached."""
        before = self.prompt_tokens
        return self.ask(question, **more) >= before // BLOCK * BLOCK - BLOCK


def metric(name: str, **labels: str) -> float:
    """A metric of the node, added up over processes."""
    text = httpx.get(f"http://127.0.0.1:{PORTS['metrics']}/metrics", timeout=30).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(f"ray_{name}")
        and all(f'{key}="{value}"' in line for key, value in labels.items())
    )


def warm_up(line: Line, key: str) -> None:
    """Until the router has its tokenizer and follows both verifiers: one warm turn may be luck."""
    deadline_s = time.monotonic() + 90
    number = in_a_row = 0
    while time.monotonic() < deadline_s:
        talk = Conversation(line, key, f"warming {number}")
        talk.ask("Hello?")
        time.sleep(1)
        in_a_row = in_a_row + 1 if talk.ask("And again?") > BLOCK else 0
        if in_a_row == 4:
            return
        number += 1
    pytest.fail("the router did not get warm")


def test_the_router_sees_the_tokens_that_the_engine_sees(
    routed_line: Line, smollm2: Path, alpha: str
) -> None:
    """Over a varied corpus, by the engine's own /tokenize."""
    reader = PromptReader(PromptSettings(str(smollm2)))
    compared = 0
    with httpx.Client(
        base_url=routed_line.url, headers={"authorization": f"Bearer {alpha}"}, timeout=60
    ) as client:
        for name, body in {**CHATS, **COMPLETIONS}.items():
            if not body.keys() <= TOKENIZE_TAKES or not isinstance(body.get("prompt", ""), str):
                continue
            answer = client.post("/tokenize", json={"model": MODEL, **body})
            assert answer.status_code == 200, (name, answer.text)
            assert reader.token_ids(body).tolist() == answer.json()["tokens"], name
            compared += 1
    assert compared > 25


def test_turns_of_a_conversation_find_their_prefix(routed_line: Line, alpha: str) -> None:
    """Six conversations in turns: from the second turn on, all whole blocks are found, but for
    the few turns that the router sends elsewhere because computing is sooner than waiting.
    """
    warm_up(routed_line, alpha)
    matched = metric("paceline_router_matched_tokens_total")
    talks = [Conversation(routed_line, alpha, topic) for topic in "abcdef"]
    for talk in talks:
        talk.ask("Who are you?")
    time.sleep(1)  # an event is on its way for a moment
    warm_turns = 0
    for turn in range(4):
        for talk in talks:
            warm_turns += talk.ask_and_find_warm(f"Question {turn}?")
        time.sleep(0.5)
    assert warm_turns >= 20, f"{warm_turns} of 24"
    routed_line.settle(6)
    assert len(routed_line.finished_by_verifier()) == 2
    assert metric("paceline_router_matched_tokens_total") > matched
    assert metric("paceline_router_cold_verifiers") == 0


def test_of_a_long_body_the_router_sees_enough(routed_line: Line, alpha: str) -> None:
    """HAProxy shows it the beginning, and it matches what stands there."""
    warm_up(routed_line, alpha)
    more = {"metadata": {"note": "a long note " * 40_000}}
    unread = metric("paceline_router_untokenized_total")
    talks = [Conversation(routed_line, alpha, topic) for topic in ("long", "longer", "longest")]
    for talk in talks:
        talk.ask("Who are you?", **more)
    warm_turns = 0
    for turn in range(3):
        time.sleep(1)
        warm_turns += sum(talk.ask_and_find_warm(f"Question {turn}?", **more) for talk in talks)
    assert warm_turns >= 7, f"{warm_turns} of 9"
    routed_line.settle(6)
    assert metric("paceline_router_untokenized_total") == unread


def test_conversations_are_spread_over_the_verifiers(routed_line: Line, alpha: str) -> None:
    """Different beginnings go to different places, though nobody is busy."""
    before = routed_line.finished_by_verifier()
    for number in range(16):
        Conversation(routed_line, alpha, f"topic {number}").ask("Hello?")
    routed_line.settle()
    after = routed_line.finished_by_verifier()
    assert min(after[worker] - before.get(worker, 0) for worker in after) >= 2


def test_an_answer_says_why_it_came_from_where_it_did(routed_line: Line, alpha: str) -> None:
    """Through HAProxy; and nobody can have something else said by sending the header himself."""
    warm_up(routed_line, alpha)
    talk = Conversation(routed_line, alpha, "explanations")
    talk.ask("Who are you?")
    time.sleep(1)
    answer = httpx.post(
        f"{routed_line.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {alpha}", ROUTE.decode(): "a lie"},
        json={"model": MODEL, "messages": talk.messages, "max_tokens": 2},
        timeout=120,
    )
    assert answer.status_code == 200
    told = answer.headers["x-paceline-route"]
    decided = re.match(r"(\S+), [\d.]+ s: queue [\d.]+, prefill .*; holds (\d+)\+", told)
    assert decided, told
    assert any(decided[1] in worker for worker in routed_line.finished_by_verifier())
    assert int(decided[2]) > 0, told


def test_what_is_warm_for_one_tenant_is_cold_for_another(
    routed_line: Line, alpha: str, beta: str
) -> None:
    """Nothing is found, and the router expected nothing."""
    warm_up(routed_line, alpha)
    Conversation(routed_line, alpha, "secrets").ask("Who are you?")
    routed_line.settle(6)
    matched = metric("paceline_router_matched_tokens_total")
    assert Conversation(routed_line, beta, "secrets").ask("Who are you?") == 0
    routed_line.settle(6)
    assert metric("paceline_router_matched_tokens_total") == matched


def test_a_killed_verifier_is_forgotten(routed_line: Line, alpha: str) -> None:
    """Its conversations go on elsewhere, and get warm there, though a turn may be sent on once."""
    warm_up(routed_line, alpha)
    talks = [Conversation(routed_line, alpha, f"mortal {number}") for number in range(4)]
    for talk in talks:
        talk.ask("Who are you?")
    victim = routed_line.status()["verifiers"][0]["report"]
    os.kill(victim["pid"], signal.SIGKILL)
    deadline_s = time.monotonic() + RECOVERY_S
    while time.monotonic() < deadline_s:
        with suppress(openai.APIError):  # some fail until the router knows
            Conversation(routed_line, alpha, "probe").ask("Hello?")
        workers = {v["report"]["worker_id"] for v in routed_line.status()["verifiers"]}
        if len(workers) == 2 and victim["worker_id"] not in workers:
            break
    else:
        pytest.fail(f"no new verifier after {RECOVERY_S} s")
    time.sleep(3)
    for talk in talks:
        talk.ask("Still there?")
    time.sleep(1)
    for talk in talks:
        assert any(talk.ask_and_find_warm(f"And now, {number}?") for number in range(3))
