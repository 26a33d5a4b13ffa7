"""What a network does between verifier and draft worker costs drafts, and nothing else."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fault_proxy import FaultProxy
from scripted_worker import ScriptedWorker

from replicas.messages import SPOKEN, Codec
from replicas.verifier.draft_pool import DraftPool, Row, WorkerAddress

CODEC = Codec(b"a token of a test")
VOCAB_SIZE = 500
STEP_S = 0.02
PATIENCE_S = 30.0


class Line:
    """A pool, a proxy and a worker in a row."""

    def __init__(self, proxy: FaultProxy, worker: ScriptedWorker) -> None:
        self.proxy = proxy
        self.worker = worker
        self.skipped_s = 0.0
        self.length = 3
        self.pool = DraftPool(CODEC, VOCAB_SIZE, "t0", lambda: time.monotonic() + self.skipped_s)
        self.pool.update([WorkerAddress("w0", proxy.endpoint, SPOKEN, "t0", ("prompt_lookup",))])

    @property
    def state(self) -> str:
        return self.pool.states()["w0"]

    def step(self, deadline_s: float = STEP_S) -> bool:
        """The text goes on, further than any answer ran ahead; says whether there is a draft."""
        self.length += 10
        context = np.arange(self.length, dtype=np.int32) % VOCAB_SIZE
        self.pool.exchange({1: Row(context, 4)}, (), deadline_s)
        draft = self.pool.draft(1, context, 4)
        assert draft is None or draft.tokens[0] == self.length % VOCAB_SIZE
        return draft is not None

    def steps_until(self, true: Callable[[], bool]) -> None:
        """The engine goes on: a breaker's time passes faster, what a connection needs does not."""
        until_s = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > until_s:
                raise AssertionError(f"never so: {self.pool.states()} {self.pool.stats}")
            self.step()
            self.skipped_s += 0.1
            time.sleep(0.001)


@pytest.fixture
def line() -> Iterator[Line]:
    with ScriptedWorker(CODEC, VOCAB_SIZE) as worker, FaultProxy(worker.port) as proxy:
        line = Line(proxy, worker)
        yield line
        line.pool.close()


def test_a_black_hole_opens_the_breaker_until_it_is_gone(line: Line) -> None:
    """Nothing is refused and nothing is answered: the worst a network does."""
    assert line.step(10.0)
    line.proxy.black_hole = True
    line.steps_until(lambda: line.state == "open")
    assert line.pool.stats.deadline_misses == 3
    line.proxy.black_hole = False
    line.steps_until(lambda: line.state == "closed")
    line.steps_until(line.step)
    assert line.pool.stats.violations == {}


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_a_connection_that_ends_is_made_again(line: Line, fault: str) -> None:
    """The worker takes it for a new verifier, and is told all."""
    assert line.step(10.0)
    for _ in range(3):
        getattr(line.proxy, fault)()
        line.steps_until(lambda: line.state == "closed" and line.step())
    assert {ask.base for batch in line.worker.asked for ask in batch.asks} > {0}
    assert line.pool.stats.violations == {}


def test_a_slow_network_is_missed_and_its_answers_are_late(line: Line) -> None:
    """Nobody waits for it longer than three steps; when it is fast again it is used again."""
    assert line.step(10.0)
    line.proxy.delay_s = 0.5
    line.steps_until(lambda: line.state == "open")
    assert line.pool.stats.deadline_misses == 3
    line.proxy.delay_s = 0.0
    line.steps_until(lambda: line.state == "closed")
    line.steps_until(line.step)
    assert line.pool.stats.violations == {}


def test_a_slow_network_serves_a_text_that_it_foresees(line: Line) -> None:
    """Answers that run ahead arrive after their step, and are its successors' drafts."""
    context = np.arange(4000, dtype=np.int32) % VOCAB_SIZE
    line.pool.exchange({1: Row(context[:3], 4)}, (), 10.0)
    line.proxy.delay_s = 0.01
    used = 0
    for length in range(4, 60):
        line.pool.exchange({1: Row(context[:length], 2)}, (), 0)
        used += line.pool.draft(1, context[:length], 2) is not None
        time.sleep(0.01)
    assert used > 0
    assert line.pool.stats.answers > 1
    assert line.state == "closed"
