"""A real line that scales itself while it is asked: nothing is lost, and the reasons are told."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import closed_loop
import openai
import pytest
from lines import MODEL, Line, Lines, base_config

from configs import load_config
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live
from kvstore.scaling_report import PoolReport, ScalingReport, read_scaling

pytestmark = [pytest.mark.line, pytest.mark.long]

POLL_S = 0.2
START_S = 120.0
"""Until a verifier that was decided on answers, on a machine whose cores are all in use."""
DECIDE_S = 90.0
STEP_S = 0.07
"""Of the engine, about."""
SHORT, LONG = 24, 280
"""Tokens of an answer."""
WORDS = ("red", "green", "blue", "white", "black", "brown")
# The model goes on with what repeats, and so its drafts are right from the first step on.
PROMPTS = [" ".join([one, two, "three"] * 8) for one in WORDS for two in WORDS if one < two]


def config() -> dict[str, object]:
    """One or two verifiers of eight sequences, none to two draft workers, and short memories."""
    sections = base_config(
        drafting={
            "max_length": 4,
            "governor": {"mode": "fixed"},
            "split": {
                "local_lookup": False,
                # Drafts for one step at a time: one that comes too late is missed.
                "ahead": 0,
                "workers": {"replicas": 0, "cpus": 0},
            },
        },
        autoscaling={
            "max_verifiers": 2,
            "max_draft_workers": 2,
            # Slow enough for a busy machine: a full step is what asks for more here.
            "ttft_s": 60,
            "tpot_ms": 10000,
            "window_s": 5,
            "keep_s": 5,
            "cold_start_s": 20,
        },
    )
    sections["verifiers"] |= {"cpus": 1, "max_sequences": 8, "longest_stream_s": 60}
    return sections


@dataclass
class Answer:
    """What a client got for one prompt."""

    prompt: str
    asked: int
    text: str = ""
    tokens: int = 0
    finish: str | None = None
    failed: str = ""


@dataclass
class Clients:
    """Ask one after another, each in a thread of its own, and keep every answer."""

    client: openai.OpenAI
    answers: list[Answer] = field(default_factory=list)

    @contextmanager
    def asking(self, clients: int, tokens: int) -> Iterator[None]:
        """So many of them ask until the block ends, and their last answers are waited for."""

        def ask(number: int) -> None:
            self.answers.append(self._ask(PROMPTS[number % len(PROMPTS)], tokens))

        with closed_loop.asking(clients, ask):
            yield

    def _ask(self, prompt: str, tokens: int) -> Answer:
        answer = Answer(prompt, tokens)
        try:
            for chunk in self.client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            ):
                for choice in chunk.choices:
                    answer.text += choice.text
                    answer.finish = choice.finish_reason or answer.finish
                if chunk.usage is not None:
                    answer.tokens = chunk.usage.completion_tokens
        except Exception as error:  # whatever it is, an answer is lost
            answer.failed = repr(error)
        return answer


class Watch:
    """Keeps every decision of the autoscaler that is told, and which verifiers were live."""

    def __init__(self, line: Line) -> None:
        self._config = load_config(line.config_file)
        self._settings = redis_settings(self._config)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self.decisions: list[ScalingReport] = []
        self.finished: dict[str, int] = {}
        """Requests by verifier, as it last told."""

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(POLL_S):
            decided = read_scaling(self._settings, self._config.name)
            if decided is not None and decided not in self.decisions[-1:]:
                self.decisions.append(decided)
            for report in read_live(self._settings, self._config.name, "verifier").reports:
                self.finished[report.worker_id] = report.requests_finished

    def until(self, true: Callable[[ScalingReport], bool], within_s: float) -> None:
        """Waits for a decision of which this is true, or fails with the last one."""
        deadline_s = time.monotonic() + within_s
        while not (self.decisions and true(self.decisions[-1])):
            assert time.monotonic() < deadline_s, "\n".join(map(str, self.decisions[-90:]))
            time.sleep(POLL_S)


@contextmanager
def busy_elsewhere(line: Line) -> Iterator[None]:
    """Draft workers are stopped for about one step of five, as where others use their cores."""
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(3 * STEP_S):
            workers = [report["pid"] for report in line.reports("draft")]
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in workers:
                    with suppress(ProcessLookupError):  # it was let go meanwhile
                        os.kill(pid, number)
                time.sleep(STEP_S)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        yield
    finally:
        over.set()
        disturber.join()


@dataclass(frozen=True)
class Story:
    """What was seen from the first request to the last draft worker's end."""

    answers: list[Answer]
    decisions: list[ScalingReport]
    finished: dict[str, int]
    status_with_two: str
    status_at_the_end: str
    controller_log: str


@pytest.fixture(scope="module")
def story(lines: Lines) -> Story:
    """Two clients, then twelve until there are two verifiers, two until there is one, none."""
    line = lines.get("scaling", config())
    clients = Clients(line.client())

    def status() -> str:
        return " ".join(line.paceline("status", str(line.config_file)).stdout.split())

    def workers(decided: ScalingReport) -> PoolReport:
        assert decided.draft_workers is not None
        return decided.draft_workers

    with Watch(line) as watch:
        watch.until(lambda _: True, DECIDE_S)
        with clients.asking(2, SHORT), busy_elsewhere(line):
            watch.until(lambda decided: workers(decided).running == 2, START_S)
        with clients.asking(12, SHORT):
            watch.until(lambda decided: decided.verifiers.target == 2, DECIDE_S)
            watch.until(lambda decided: decided.verifiers.running == 2, START_S)
            watch.until(lambda _: sum(n > 0 for n in watch.finished.values()) == 2, START_S)
            status_with_two = status()
        with clients.asking(2, LONG):
            watch.until(lambda decided: decided.verifiers.target == 1, DECIDE_S)
            watch.until(lambda decided: decided.verifiers.running == 1, DECIDE_S)
            until_gone(line)
        watch.until(lambda decided: workers(decided).reason == "nothing is asked", DECIDE_S)
        watch.until(lambda decided: workers(decided).running == 0, DECIDE_S)
        status_at_the_end = status()
    logs = line.run_folder / "ray" / "session_latest" / "logs" / "serve"
    return Story(
        clients.answers,
        watch.decisions,
        watch.finished,
        status_with_two,
        status_at_the_end,
        "".join(file.read_text() for file in logs.glob("controller_*.log")),
    )


def until_gone(line: Line) -> None:
    """Waits until the verifier that was let go has ended its streams and its process."""
    deadline_s = time.monotonic() + DECIDE_S
    while len(line.replica_ports()) > 1:
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


def moves(pools: list[PoolReport]) -> list[tuple[int, int]]:
    """The changes of a number of replicas, in order."""
    targets = [pool.target for pool in pools]
    return [(one, other) for one, other in pairwise(targets) if one != other]


def test_no_request_is_lost(story: Story) -> None:
    """Up and down under load every answer is whole, and that of the same prompt the same."""
    assert [answer for answer in story.answers if answer.failed] == []
    said: dict[tuple[str, int], str] = {}
    for answer in story.answers:
        assert (answer.tokens, answer.finish) == (answer.asked, "length")
        assert answer.text == said.setdefault((answer.prompt, answer.asked), answer.text)
    assert len(story.answers) > 50


def test_verifiers_follow_the_load_without_going_to_and_fro(story: Story) -> None:
    """One, two while they are needed, one: no other change, and both had answered."""
    verifiers = [decided.verifiers for decided in story.decisions]
    assert verifiers[0].target == 1
    assert moves(verifiers) == [(1, 2), (2, 1)]
    assert len([count for count in story.finished.values() if count]) == 2


def test_draft_workers_come_while_they_pay_and_go(story: Story) -> None:
    """None, two, none again; the first is a trial."""
    workers = [decided.draft_workers for decided in story.decisions if decided.draft_workers]
    assert workers[0].target == workers[0].running == 0
    assert moves(workers)[0] == (0, 1)
    assert max(pool.running for pool in workers) == 2
    assert workers[-1].target == workers[-1].running == 0


def test_the_reasons_are_shown_and_logged(story: Story) -> None:
    """`paceline status` says how many are wanted and why, the controller's log each change."""
    assert "verifiers: 2 wanted: " in story.status_with_two
    assert "requests/s of" in story.status_with_two
    assert "verifiers: 1 wanted: " in story.status_at_the_end
    assert "draft workers: 0 wanted: nothing is asked" in story.status_at_the_end
    for change in ("verifiers reason='from 1 to 2: ", "verifiers reason='from 2 to 1: "):
        assert f"scaling pool={change}" in story.controller_log
    assert "scaling pool=workers reason='from 0 to 1: a trial begins" in story.controller_log
