"""Two verifiers of one line share KV blocks through a real LMCache and Redis, and say the same.

Verifiers are asked on their own ports, so that it is known which one computes and which one
fetches. Both always draft, from what stands in the prompt.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from lines import MODEL, Line
from prompts import CODE

from configs import load_config
from kvstore.redis_client import connect_blocking, redis_settings

pytestmark = pytest.mark.line

CHUNK, BLOCK = 64, 32
OUTPUT_TOKENS = 24
PATIENCE_S, RECOVERY_S = 60.0, 180.0
ROUTE = re.compile(
    r"(?P<worker>\S+), .* fetch (?P<fetch_s>[0-9.]+),.* holds (?P<device>\d+)\+(?P<colder>\d+) "
)


class Verifier:
    """One verifier of the line, asked on its own port.

    Attributes:
        worker_id: In the registry.
        pid: Of its replica.
    """

    def __init__(self, line: Line, report: dict[str, Any]) -> None:
        self.worker_id, self.pid = report["worker_id"], report["pid"]
        self._line = line
        [self._port] = [
            connection.laddr.port
            for connection in psutil.Process(self.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr.port in line.replica_ports()
        ]

    def ask(self, key: str, prompt: str, max_tokens: int = OUTPUT_TOKENS) -> "Said":
        """Its greedy answer."""
        return Said.of(f"http://127.0.0.1:{self._port}", key, prompt, max_tokens)

    def report(self) -> dict[str, Any]:
        """What the registry knows of it."""
        return next(r for r in self._line.reports() if r["worker_id"] == self.worker_id)


class Said:
    """An answer and what it cost.

    Attributes:
        tokens: Of the answer.
        prompt_tokens: Of the prompt.
        cached: Of these, found and not computed.
        route: Why it went where it went; empty where no router was asked.
        request_id: As the log knows it.
    """

    def __init__(self, answer: httpx.Response) -> None:
        body = answer.json()
        self.tokens = body["choices"][0]["token_ids"]
        self.prompt_tokens = body["usage"]["prompt_tokens"]
        details = body["usage"]["prompt_tokens_details"] or {}
        self.cached = details.get("cached_tokens") or 0
        self.route = answer.headers.get("x-paceline-route", "")
        self.request_id = body["id"]

    @classmethod
    def of(cls, url: str, key: str, prompt: str, max_tokens: int = OUTPUT_TOKENS) -> "Said":
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        answer = httpx.post(
            f"{url}/v1/completions",
            headers={"authorization": f"Bearer {key}"},
            json={**body, "return_token_ids": True, "ignore_eos": True},
            timeout=120,
        )
        answer.raise_for_status()
        return cls(answer)

    @property
    def fetches_all(self) -> bool:
        """Whether all that can be shared was found: whole chunks of the prompt."""
        return bool(self.cached >= (self.prompt_tokens - 1) // CHUNK * CHUNK - 1)

    def drafts(self, line: Line) -> str:
        """Drafted and accepted tokens, as the log tells."""
        [told] = [
            row
            for row in line.replica_logs().splitlines()
            if f"request id={self.request_id}" in row
        ]
        return " ".join(word for word in told.split() if word.startswith(("drafted=", "accepted=")))


def some_prompt(topic: str) -> str:
    """About 450 tokens that no other topic begins with, and that repeat."""
    return f"Everything about {topic}, and this code, four times:\n{CODE * 4}\nAgain, {topic}:\n"


def pair(line: Line) -> tuple[Verifier, Verifier]:
    """Both verifiers."""
    one, other = (Verifier(line, r) for r in sorted(line.reports(), key=lambda r: r["worker_id"]))
    return one, other


def kv_server(line: Line) -> dict[str, Any]:
    """What the node's LMCache server says of itself."""
    [server] = line.reports("kv")
    return server


def loaded(line: Line) -> int:
    """Values that came from Redis since the server's start."""
    counts = [tier["counts"] for tier in kv_server(line)["tiers"] if tier["kind"] == "redis"]
    return sum(of.get("loaded", 0) for of in counts)


def values(line: Line) -> set[bytes]:
    """Names of what lies in Redis."""
    config = load_config(line.config_file)
    with connect_blocking(redis_settings(config)) as client:
        return set(client.scan_iter(f"paceline:{config.name}:kv:*", count=1000))


def wait_for(what: Callable[[], bool], told: str, within_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until_s, told
        time.sleep(0.25)


def computed(line: Line, verifier: Verifier, key: str, prompt: str) -> Said:
    """Has a verifier compute a prompt; returns when its blocks lie in Redis."""
    time.sleep(0.5)  # what was computed before is on its way to Redis
    before = values(line)
    said = verifier.ask(key, prompt)
    assert said.cached < CHUNK, "it was known already"
    chunks = said.prompt_tokens // CHUNK
    wait_for(lambda: len(values(line) - before) >= chunks, f"{chunks} chunks do not get into Redis")
    return said


def router_is_warm(line: Line, key: str) -> bool:
    """Whether it has its tokenizer and follows both verifiers: short prompts that it has seen."""
    seen = [Said.of(line.url, key, some_prompt("warming"), 1) for _ in range(2)]
    return (match := ROUTE.search(seen[-1].route)) is not None and int(match["device"]) > 0


def test_what_one_verifier_computed_the_other_need_not(
    shared_line: Line, alpha: str, beta: str
) -> None:
    """It says the same, with the same drafts accepted; another tenant's prompt is not found."""
    one, other = pair(shared_line)
    prompt = some_prompt("rivers")
    first = computed(shared_line, one, alpha, prompt)
    fetched = other.ask(alpha, prompt)
    stranger = other.ask(beta, prompt)
    assert fetched.fetches_all, (fetched.cached, fetched.prompt_tokens)
    assert stranger.cached == 0
    assert first.tokens == fetched.tokens == stranger.tokens
    shared_line.settle()
    drafts = [said.drafts(shared_line) for said in (first, fetched, stranger)]
    assert len(set(drafts)) == 1, drafts
    assert "accepted=0" not in drafts[0]


def test_the_router_counts_on_what_a_verifier_can_fetch(shared_line: Line, alpha: str) -> None:
    """A prompt of a busy verifier goes to an idle one that holds none of it, at the price which
    that one has measured for fetching.
    """
    busy, idle = pair(shared_line)
    prompt = some_prompt("mountains")
    first = computed(shared_line, busy, alpha, prompt)
    computed(shared_line, busy, alpha, some_prompt("a fetch to measure"))
    assert idle.ask(alpha, some_prompt("a fetch to measure"), 1).fetches_all
    wait_for(lambda: router_is_warm(shared_line, alpha), "the router does not get warm")
    shared_line.settle()
    load = idle.report()["sharing"]["load"]
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(busy.ask, alpha, f"{n} " * 600 + CODE, 1) for n in (3, 5)]
        time.sleep(1.0)  # it tells of its load four times a second
        said = Said.of(shared_line.url, alpha, prompt)
        for each in work:
            each.result()
    route = ROUTE.search(said.route)
    assert route is not None, said.route
    assert route["worker"] == idle.worker_id
    assert int(route["device"]) == 0
    assert int(route["colder"]) >= first.prompt_tokens // CHUNK * CHUNK // BLOCK
    tokens = int(route["colder"]) * BLOCK
    expected_s = load["base_s"] + load["s_per_token"] * tokens
    assert float(route["fetch_s"]) == pytest.approx(expected_s, rel=0.02, abs=0.002)
    assert said.fetches_all, (said.cached, said.route)
    assert said.tokens == first.tokens


def test_a_lost_lmcache_costs_speed_and_redis_remembers(shared_line: Line, alpha: str) -> None:
    """Both verifiers answer while it is gone; it is started again, and what was computed before
    is found in Redis.
    """
    one, other = pair(shared_line)
    prompt, meanwhile = some_prompt("lakes"), some_prompt("islands")
    first = computed(shared_line, one, alpha, prompt)
    before = kv_server(shared_line)
    os.kill(before["pid"], signal.SIGKILL)
    answers = [verifier.ask(alpha, meanwhile) for verifier in (one, other)]
    assert answers[0].tokens == answers[1].tokens

    def is_back() -> bool:
        """Verifiers notice with the steps they make."""
        for verifier in (one, other):
            verifier.ask(alpha, "Are you there?", 1)
        shared_line.settle()
        server = kv_server(shared_line)
        return (
            server["is_healthy"]
            and server["starts"] == before["starts"] + 1
            and all(verifier.report()["sharing"]["is_healthy"] for verifier in (one, other))
        )

    wait_for(is_back, "LMCache does not come back")
    before_loaded = loaded(shared_line)
    fetched = other.ask(alpha, prompt)
    assert fetched.fetches_all, (fetched.cached, fetched.prompt_tokens)
    assert fetched.tokens == first.tokens
    wait_for(lambda: loaded(shared_line) > before_loaded, "nothing came from Redis")
    assert one.report()["sharing"]["decided"]["short"] > 0
    told = shared_line.paceline("status", str(shared_line.config_file)).stdout
    told = " ".join(told.split())
    for part in ("LMCache state tier", "up memory 2", "up redis", "tokens fetched", "from memory"):
        assert part in told
    assert "LMCache is away" not in told


def test_a_restarted_verifier_finds_its_conversations(shared_line: Line, alpha: str) -> None:
    """Its engine is new and empty, and it computes nothing of them again."""
    victim, survivor = pair(shared_line)
    prompts = [some_prompt(topic) for topic in ("bread", "cheese")]
    answers = [computed(shared_line, victim, alpha, prompt) for prompt in prompts]
    os.kill(victim.pid, signal.SIGKILL)
    known = {victim.worker_id, survivor.worker_id}

    def fresh() -> list[dict[str, Any]]:
        return [r for r in shared_line.reports() if r["worker_id"] not in known]

    wait_for(lambda: bool(fresh()), "no new verifier", RECOVERY_S)
    born: list[Verifier] = []

    def answers_again() -> bool:
        with suppress(ValueError, httpx.HTTPError):
            born[:] = [Verifier(shared_line, fresh()[0])]
            return bool(born[0].ask(alpha, "Are you there?", 1).tokens)
        return False

    wait_for(answers_again, "the new verifier does not answer")
    for prompt, answer in zip(prompts, answers, strict=True):
        found = born[0].ask(alpha, prompt)
        assert found.fetches_all, (found.cached, found.prompt_tokens)
        assert found.tokens == answer.tokens
        shared_line.settle()
        assert found.drafts(shared_line) == answer.drafts(shared_line)
