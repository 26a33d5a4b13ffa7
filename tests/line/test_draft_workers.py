"""Draft workers that die, stop, crawl, lie or come back cost drafts, never an answer.

The line has no draft worker of its own; each test brings the ones it needs. Every answer
must be the one that the same line gave undisturbed.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from lines import MODEL, PORTS, Line
from outside_worker import LIES
from prompts import CODE, FACTS

pytestmark = pytest.mark.line

PROMPTS = (
    f"Repeat this code exactly, twice:\n{CODE}",
    f"Copy this text word for word, twice: {FACTS}",
    "Continue: one two three one two three one two three one two",
    "a b c d a b c d a b c d a b c d a b c d",
)
OUTPUT_TOKENS = 160
LONGEST_WAIT_S = 1.02
"""By all that a fault may hold up a stream: one deadline (`wait_max_ms`) and a second."""
PATIENCE_S = 40.0
WORKER = "worker:prompt_lookup"


class Worker:
    """An outside draft worker in a process of its own."""

    def __init__(self, line: Line, name: str, *options: str) -> None:
        script = Path(__file__).parent.parent / "support" / "outside_worker.py"
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(line.config_file), name, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint.startswith("tcp://"), "the worker did not start"

    def end(self, number: int = signal.SIGKILL) -> None:
        """Ends it, stopped or not."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Workers to end after the test."""
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.end()


class Stream:
    """The tokens of one streamed answer."""

    def __init__(self, line: Line, prompt: str, on_chunk: Callable[[int], None] | None = None):
        self.ids: list[int] = []
        chunks = line.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        for number, chunk in enumerate(chunks):
            for choice in chunk.choices:
                self.ids += choice.model_extra.get("token_ids") or ()
            if on_chunk is not None:
                on_chunk(number)


class Undisturbed:
    """What the line answered when nothing happened."""

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}

    def has(self, prompt: str, stream: Stream) -> None:
        """The answer is whole, and the same."""
        assert len(stream.ids) == OUTPUT_TOKENS
        assert stream.ids == self._ids.setdefault(prompt, stream.ids)


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    """Filled by the first answers of the module, when nothing happens yet."""
    return Undisturbed()


def check_all(line: Line, undisturbed: Undisturbed) -> None:
    """Every prompt, all at once, answers as ever."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        streams = list(pool.map(lambda prompt: Stream(line, prompt), PROMPTS))
    for prompt, stream in zip(PROMPTS, streams, strict=True):
        undisturbed.has(prompt, stream)


def waited_s(line: Line) -> float:
    """How long the verifier's steps have waited for drafts, in all."""
    line.settle(1.0)
    waited: float = line.reports()[0]["draft_wait_s"]
    return waited


def disturbed(
    line: Line, undisturbed: Undisturbed, prompt: str, disturb: Callable[[], None]
) -> None:
    """A stream that is disturbed in its middle says the same and is not held up.

    All its waits together are shorter than one may be, as the engine counts them: what a
    client sees of pauses on a machine whose cores are all busy says little of drafts.
    """
    before_s = waited_s(line)
    undisturbed.has(prompt, Stream(line, prompt, in_the_middle(disturb)))
    assert waited_s(line) - before_s < LONGEST_WAIT_S


def state_of(line: Line, worker: str) -> str | None:
    """What the verifier says of a draft worker."""
    states: dict[str, str] = line.reports()[0]["draft_workers"]
    return states.get(worker)


def until(line: Line, worker: str, wanted: Callable[[str | None], bool]) -> str | None:
    """Waits until the verifier says what is wanted of a draft worker, drafting all the while."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted(state := state_of(line, worker)):
        assert time.monotonic() < deadline_s, f"{worker} stayed {state}"
        Stream(line, PROMPTS[2])
    return state


def gained(line: Line, act: Callable[[], None]) -> dict[str, int]:
    """Accepted tokens by source while `act` ran."""
    before = line.accepted_by_source()
    act()
    after = line.accepted_by_source()
    return {source: count - before.get(source, 0) for source, count in after.items()}


def until_drafts(line: Line, undisturbed: Undisturbed, source: str, tokens: int) -> None:
    """Asks until so many tokens of a source have been accepted."""
    deadline_s = time.monotonic() + PATIENCE_S
    accepted = 0
    while accepted <= tokens:
        assert time.monotonic() < deadline_s, f"{accepted} tokens from {source}"
        accepted += gained(line, lambda: check_all(line, undisturbed)).get(source, 0)


def join(line: Line, workers: list[Worker], name: str, *options: str) -> Worker:
    """Starts a worker and waits until the verifier has it."""
    worker = Worker(line, name, *options)
    workers.append(worker)
    until(line, name, lambda state: state is not None)
    return worker


def in_the_middle(act: Callable[[], None]) -> Callable[[int], None]:
    """Acts once, a few chunks into a stream."""

    def on_chunk(number: int) -> None:
        if number == 8:
            act()

    return on_chunk


def test_without_any_worker_the_verifier_drafts_by_itself(
    worker_less_line: Line, undisturbed: Undisturbed
) -> None:
    """Local prompt lookup stands in, and is shown as the source."""
    told = gained(worker_less_line, lambda: check_all(worker_less_line, undisturbed))
    assert told.get("local:prompt_lookup", 0) > 100
    assert WORKER not in told


def test_a_worker_that_joins_drafts(
    worker_less_line: Line, undisturbed: Undisturbed, workers: list[Worker]
) -> None:
    """Within seconds, without a restart of anything."""
    join(worker_less_line, workers, "joins")
    until_drafts(worker_less_line, undisturbed, WORKER, 100)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_worker_lost_in_the_middle_of_a_stream_costs_drafts_only(
    worker_less_line: Line,
    undisturbed: Undisturbed,
    workers: list[Worker],
    how: str,
) -> None:
    """kill -9 and SIGSTOP: the stream goes on, local lookup stands in, a new start drafts again."""
    line = worker_less_line
    check_all(line, undisturbed)
    worker = join(line, workers, how)
    number = signal.SIGKILL if how == "killed" else signal.SIGSTOP
    disturbed(line, undisturbed, PROMPTS[0], lambda: worker.process.send_signal(number))
    until(line, how, lambda state: state != "closed")
    until_drafts(line, undisturbed, "local:prompt_lookup", 100)
    if how == "killed":
        join(line, workers, "again")
    else:
        worker.process.send_signal(signal.SIGCONT)
        until(line, how, lambda state: state == "closed")
    until_drafts(line, undisturbed, WORKER, 100)


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_that_lies_costs_drafts_only(
    worker_less_line: Line, undisturbed: Undisturbed, workers: list[Worker], lie: str
) -> None:
    """Whatever it sends, answers stay; what can't be believed opens its breaker."""
    line = worker_less_line
    check_all(line, undisturbed)
    join(line, workers, f"lies-{lie}", "--lie", lie)
    check_all(line, undisturbed)
    if lie != "wrong":
        until(line, f"lies-{lie}", lambda state: state in ("open", "half_open"))
    check_all(line, undisturbed)


@pytest.mark.parametrize("fault", ["delay", "black_hole", "cut", "reset"])
def test_a_bad_network_costs_drafts_only(
    worker_less_line: Line, undisturbed: Undisturbed, workers: list[Worker], fault: str
) -> None:
    """Slowed, silent or cut in the middle of a stream; drafts are back when the network is."""
    line = worker_less_line
    check_all(line, undisturbed)
    with FaultProxy(PORTS["drafts_from"]) as proxy:
        worker = join(line, workers, f"net-{fault}", "--behind", proxy.endpoint)
        assert worker.endpoint.endswith(str(PORTS["drafts_from"]))
        until_drafts(line, undisturbed, WORKER, 100)
        disturbed(line, undisturbed, PROMPTS[0], lambda: harm(proxy, fault))
        check_all(line, undisturbed)
        proxy.delay_s, proxy.black_hole = 0.0, False
        until(line, worker.name, lambda state: state == "closed")
        until_drafts(line, undisturbed, WORKER, 100)


def harm(proxy: FaultProxy, fault: str) -> None:
    """Does one thing to the network."""
    if fault == "delay":
        proxy.delay_s = 0.3
    elif fault == "black_hole":
        proxy.black_hole = True
    elif fault == "cut":
        proxy.cut()
    else:
        proxy.reset()


def test_two_workers_share_the_sessions_and_stand_in_for_each_other(
    worker_less_line: Line, undisturbed: Undisturbed, workers: list[Worker]
) -> None:
    """One verifier on two workers: both are asked; when one is killed the other drafts on."""
    line = worker_less_line
    first, second = (join(line, workers, name) for name in ("one", "two"))
    for _ in range(3):
        check_all(line, undisturbed)
    line.settle()
    asks = {report["worker_id"]: report["asks"] for report in line.reports("draft")}
    assert asks["one"] > 50
    assert asks["two"] > 50
    disturbed(line, undisturbed, PROMPTS[0], first.end)
    until(line, "one", lambda state: state != "closed")
    until_drafts(line, undisturbed, WORKER, 100)
    assert second.process.poll() is None


def test_a_worker_with_another_protocol_or_tokenizer_is_refused_by_name(
    worker_less_line: Line, workers: list[Worker]
) -> None:
    """The verifier says which worker it does not ask, and why; `paceline status` shows it."""
    line = worker_less_line
    join(line, workers, "from-tomorrow", "--protocols", "7")
    join(line, workers, "of-another-model", "--tokenizer", "0" * 64)
    assert state_of(line, "from-tomorrow") == "refused: speaks protocols [7], this verifier [2]"
    assert state_of(line, "of-another-model") == "refused: another tokenizer"
    told = " ".join(line.paceline("status", str(line.config_file)).stdout.split())
    assert "draft worker from-tomorrow is refused: speaks protocols [7]" in told
    assert "draft worker of-another-model is refused: another tokenizer" in told
