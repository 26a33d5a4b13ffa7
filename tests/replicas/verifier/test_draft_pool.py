"""Whatever a draft worker does, the pool goes on, and says what it saw."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from scripted_worker import DRAFT_TOKENS, Script, ScriptedWorker
from waiting import until

from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.messages import (
    MAX_DRAFT_TOKENS,
    SPOKEN,
    Codec,
    Draft,
    DraftBatch,
    Tokens,
    pack_tokens,
)
from replicas.verifier.draft_pool import DraftPool, Row, WorkerAddress
from replicas.verifier.placement import Load, ranked

VOCAB_SIZE = 500
CODEC = Codec(b"a token of a test")
LONG_S = 10.0
"""A deadline that is not meant to pass."""
SHORT_S = 0.03
"""One that is."""


class SkippingClock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s


class Setting:
    """A pool, and the workers it is given."""

    def __init__(self, closing: ExitStack) -> None:
        self.clock = SkippingClock()
        self.pool = DraftPool(CODEC, VOCAB_SIZE, "t0", self.clock)
        closing.callback(self.pool.close)
        self._closing = closing

    def worker(self) -> ScriptedWorker:
        """One that behaves, until it is told otherwise."""
        return self._closing.enter_context(ScriptedWorker(CODEC, VOCAB_SIZE))

    def step(self, *sessions: int, length: int = 3, wanted: int = 4, deadline_s: float) -> None:
        """One exchange with contexts of this length for all sessions."""
        rows = {session: Row(counting(length), wanted) for session in sessions}
        self.pool.exchange(rows, (), deadline_s)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ExitStack() as closing:
        yield Setting(closing)


def counting(length: int) -> Tokens:
    """0, 1, 2, ...: what a well-behaved worker takes a text to be."""
    return np.arange(length, dtype=np.int32) % VOCAB_SIZE


def address(worker: ScriptedWorker | str, worker_id: str = "w0") -> WorkerAddress:
    endpoint = worker if isinstance(worker, str) else worker.endpoint
    return WorkerAddress(worker_id, endpoint, SPOKEN, "t0", ("prompt_lookup",))


def drafted(pool: DraftPool, session: int, length: int, wanted: int = 4) -> list[int] | None:
    draft = pool.draft(session, counting(length), wanted)
    return None if draft is None else draft.tokens.tolist()


def test_a_session_is_told_once_and_drafted_each_step(setting: Setting) -> None:
    """Its context goes over once, after that what was appended; the draft says who made it."""
    worker = setting.worker()
    setting.pool.update([address(worker)])
    for length in (3, 5, 6):
        setting.step(1, length=length, deadline_s=LONG_S)
        # What is known already may be enough, and then nobody waits for the answer.
        draft = setting.pool.draft(1, counting(length), 4)
        assert draft is not None
        assert draft.tokens.tolist() == list(range(length, length + 4))
        assert draft.source == "worker:prompt_lookup"
    until(lambda: len(worker.asked) == 3)
    told = [(ask.base, len(ask.appended) // 4) for batch in worker.asked for ask in batch.asks]
    assert told == [(0, 3), (3, 2), (5, 1)]
    assert setting.pool.states() == {"w0": "closed"}


def test_an_answer_that_runs_ahead_serves_later_steps_without_waiting(setting: Setting) -> None:
    """As long as the text goes the way it said; a worker that stalls then costs nothing."""
    worker = setting.worker()
    setting.pool.update([address(worker)])
    setting.step(1, length=3, deadline_s=LONG_S)
    worker.holding = True
    setting.step(1, length=6, deadline_s=LONG_S)
    assert setting.pool.stats.waits == 1
    assert drafted(setting.pool, 1, 6) == [6, 7, 8, 9]
    assert drafted(setting.pool, 1, 9) == [9, 10]
    assert drafted(setting.pool, 1, 3 + DRAFT_TOKENS) is None
    other = np.array([0, 1, 2, 3, 9], dtype=np.int32)
    assert setting.pool.draft(1, other, 4) is None
    assert drafted(setting.pool, 2, 3) is None


def test_nobody_waits_for_rows_that_want_nothing(setting: Setting) -> None:
    """They only keep their worker up to date."""
    worker = setting.worker()
    worker.holding = True
    setting.pool.update([address(worker)])
    setting.step(1, 2, wanted=0, deadline_s=LONG_S)
    assert setting.pool.stats.waits == 0
    assert setting.pool.stats.asks == 2


def test_an_answer_without_tokens_ends_the_waiting(setting: Setting) -> None:
    """A worker that knows nothing says so; that is no miss."""
    worker = setting.worker()
    worker.script = lambda _, batch: CODEC.pack(
        DraftBatch(batch.step, [Draft(ask.session, 3, b"", "") for ask in batch.asks], [])
    )
    setting.pool.update([address(worker)])
    setting.step(1, 2, deadline_s=LONG_S)
    assert drafted(setting.pool, 1, 3) is None
    assert (setting.pool.stats.waits, setting.pool.stats.deadline_misses) == (1, 0)


def test_a_late_answer_is_a_miss_and_still_of_use(setting: Setting) -> None:
    """What it says is as true a step later."""
    worker = setting.worker()
    worker.holding = True
    setting.pool.update([address(worker)])
    setting.step(1, length=3, deadline_s=SHORT_S)
    assert drafted(setting.pool, 1, 3) is None
    assert setting.pool.stats.deadline_misses == 1
    worker.holding = False
    setting.step(1, length=4, deadline_s=LONG_S)
    assert drafted(setting.pool, 1, 4) == [4, 5, 6, 7]
    assert setting.pool.stats.late_answers == 1
    assert setting.pool.states() == {"w0": "closed"}


def test_a_worker_that_never_answers_is_left_alone_and_probed_with_one_row(
    setting: Setting,
) -> None:
    """Three waits, then none; later a single row tries it, and all come back when it answers."""
    worker = setting.worker()
    worker.holding = True
    setting.pool.update([address(worker)])
    for length in (3, 4, 5):
        setting.step(1, 2, length=length, deadline_s=SHORT_S)
    assert setting.pool.states() == {"w0": "open"}
    setting.step(1, 2, length=6, deadline_s=LONG_S)
    assert setting.pool.stats.waits == setting.pool.stats.messages == 3
    setting.clock.skipped_s += 1
    setting.step(1, 2, length=6, deadline_s=SHORT_S)
    assert setting.pool.stats.asks == 7
    assert setting.pool.states() == {"w0": "open"}
    worker.holding = False
    setting.clock.skipped_s += 2
    setting.step(1, 2, length=7, deadline_s=LONG_S)
    assert setting.pool.stats.asks == 8
    assert setting.pool.states() == {"w0": "closed"}
    setting.step(1, 2, length=8, deadline_s=LONG_S)
    assert drafted(setting.pool, 1, 8) == drafted(setting.pool, 2, 8) == [8, 9, 10, 11]


def test_a_worker_that_nobody_waits_for_is_noticed_too(setting: Setting) -> None:
    """Seconds without any answer count, with no deadline at all."""
    worker = setting.worker()
    worker.holding = True
    setting.pool.update([address(worker)])
    for length in range(3, 7):
        setting.step(1, length=length, deadline_s=0)
        setting.clock.skipped_s += 2.1
    assert setting.pool.states() == {"w0": "open"}
    assert (setting.pool.stats.silences, setting.pool.stats.waits) == (3, 0)


def test_sending_to_nobody_does_not_block(setting: Setting) -> None:
    """Once the queue is full, what cannot be sent is a miss."""
    worker = setting.worker()
    endpoint = worker.endpoint
    worker.stop()
    setting.pool.update([address(endpoint)])
    for length in range(3, 60):
        setting.step(1, length=length, deadline_s=0)
    assert setting.pool.states() == {"w0": "open"}
    assert setting.pool.stats.unsent == 3


def lie(session: int = 1, base: int = 3, token: int = 5, count: int = 2, step: int = 1) -> Script:
    """An answer with a good entry and another, of which something is wrong."""
    packed = pack_tokens(np.full(count, token, dtype=np.int32))
    drafts = [
        Draft(1, 3, pack_tokens(counting(4)), "prompt_lookup"),
        Draft(session, base, packed, "prompt_lookup"),
    ]
    return lambda *_: CODEC.pack(DraftBatch(step, drafts))


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("session", lie(session=2)),
        ("base", lie(base=4)),
        ("vocabulary", lie(token=VOCAB_SIZE)),
        ("vocabulary", lie(token=-1)),
        ("shape", lie(count=MAX_DRAFT_TOKENS + 1)),
        ("step", lie(step=77)),
        ("frames", lambda *_: [b"garbage", b"\x00" * 9]),
        ("frames", lambda *_: [b"one"]),
        ("token", lambda *_: [CODEC.pack(DraftBatch(1, []))[0], b"other bytes"]),
        ("token", lambda *_: Codec(b"the token of another").pack(DraftBatch(1, []))),
        ("version", lambda *_: CODEC.pack(DraftBatch(1, []), version=9)),
    ],
)
def test_a_worker_that_lies_is_not_asked_again_and_not_used(
    setting: Setting, word: str, script: Script
) -> None:
    """One such answer opens its breaker, also what is well in it does not count, and once it
    behaves it is told all contexts anew.
    """
    worker = setting.worker()
    worker.script = script
    setting.pool.update([address(worker)])
    setting.step(1, deadline_s=LONG_S)
    assert setting.pool.states() == {"w0": "open"}
    assert setting.pool.stats.violations == {word: 1}
    assert setting.pool.stats.deadline_misses == 0
    assert drafted(setting.pool, 1, 3) is None
    worker.script = None
    setting.clock.skipped_s += 1
    setting.step(1, length=4, deadline_s=LONG_S)
    assert setting.pool.states() == {"w0": "closed"}
    assert [ask.base for ask in worker.asked[-1].asks] == [0]
    assert drafted(setting.pool, 1, 4) == [4, 5, 6, 7]


def test_a_frame_that_is_too_large_never_arrives(setting: Setting) -> None:
    """ZeroMQ drops the line; what is seen is a worker that does not answer."""
    worker = setting.worker()
    worker.script = lambda *_: [b"x" * 20, b"x" * (MAX_MESSAGE_BYTES + 1)]
    setting.pool.update([address(worker)])
    for length in (3, 4, 5):
        setting.step(1, length=length, deadline_s=0.2)
    assert setting.pool.states() == {"w0": "open"}
    assert setting.pool.stats.violations == {}
    assert setting.pool.stats.answers == 0


def test_a_worker_that_restarts_is_told_all_again(setting: Setting) -> None:
    """It says that it knows nothing, and one step later it does."""
    worker = setting.worker()
    setting.pool.update([address(worker)])
    setting.step(1, length=3, deadline_s=LONG_S)
    worker.stop()
    worker.start()
    length = 3
    while not setting.pool.stats.unknown:  # an ask may be lost with the old connection
        length += 10
        setting.step(1, length=length, deadline_s=1.0)
        assert setting.pool.states() == {"w0": "closed"}
    setting.step(1, length=length + 1, deadline_s=LONG_S)
    assert drafted(setting.pool, 1, length + 1, wanted=2) == [length + 1, length + 2]
    assert worker.asked[0].asks[0].base == worker.asked[-1].asks[0].base == 0
    assert worker.asked[1].asks[0].base > 0


def test_an_answer_about_a_session_that_is_over_is_no_lie(setting: Setting) -> None:
    """It was on its way; the worker is told, even if nothing else is to be said."""
    worker = setting.worker()
    worker.holding = True
    setting.pool.update([address(worker)])
    setting.step(1, deadline_s=0)
    setting.pool.exchange({}, [1, 99], 0)
    until(lambda: len(worker.asked) == 2)
    assert worker.asked[1].forget == [1]
    worker.holding = False

    def answered() -> bool:
        setting.pool.exchange({}, (), 0)
        return setting.pool.stats.answers == 2

    until(answered)
    assert setting.pool.states() == {"w0": "closed"}
    assert drafted(setting.pool, 1, 3) is None


def test_losing_one_of_two_workers_moves_only_its_sessions(setting: Setting) -> None:
    """Those of the other never notice, and the moved ones are told whole."""
    workers = {"w0": setting.worker(), "w1": setting.worker()}
    setting.pool.update([address(worker, name) for name, worker in workers.items()])
    sessions = range(20)
    of_w0 = {session for session in sessions if ranked(session, workers)[0] == "w0"}
    setting.step(*sessions, length=3, deadline_s=LONG_S)
    assert workers["w0"].sessions == of_w0
    assert workers["w1"].sessions == set(sessions) - of_w0
    workers["w0"].stop()
    for length in (20, 40, 60):
        setting.step(*sessions, length=length, deadline_s=0.5)
        assert all(drafted(setting.pool, s, length) for s in set(sessions) - of_w0)
    assert setting.pool.states() == {"w0": "open", "w1": "closed"}
    assert setting.pool.stats.moved == 0
    setting.step(*sessions, length=80, deadline_s=LONG_S)
    assert setting.pool.stats.moved == len(of_w0)
    assert all(drafted(setting.pool, session, 80) for session in sessions)
    whole = {ask.session for ask in workers["w1"].asked[-1].asks if ask.base == 0}
    assert whole == of_w0


def test_new_sessions_go_to_workers_with_room_and_old_ones_stay(setting: Setting) -> None:
    """A worker that other verifiers keep busy gets none; what it has by now it keeps, and when it
    has told that it has room again it gets its share.
    """
    busy, idle = setting.worker(), setting.worker()
    full = replace(address(busy, "busy"), load=Load(100))
    setting.pool.update([full, address(idle, "idle")])
    setting.step(*range(10), deadline_s=LONG_S)
    assert (len(busy.sessions), len(idle.sessions)) == (0, 10)
    setting.pool.update([address(busy, "busy"), replace(address(idle, "idle"), load=Load(10))])
    setting.step(*range(20), length=4, deadline_s=LONG_S)
    assert idle.sessions.issuperset(range(10))
    assert 6 <= len(busy.sessions) <= 10
    assert setting.pool.stats.moved == 0


def test_a_new_worker_gets_its_share_at_once(setting: Setting) -> None:
    """Sessions that run are spread anew when a worker comes, and drafted there."""
    first, second = setting.worker(), setting.worker()
    setting.pool.update([address(first, "first")])
    setting.step(*range(20), length=3, deadline_s=LONG_S)
    setting.pool.update([address(first, "first"), address(second, "second")])
    setting.step(*range(20), length=30, deadline_s=LONG_S)
    assert 6 <= len(second.sessions) <= 13
    assert setting.pool.stats.moved == len(second.sessions)
    assert all(drafted(setting.pool, session, 30) for session in range(20))


def test_workers_that_cannot_help_are_named_with_the_reason(setting: Setting) -> None:
    """Another protocol or another tokenizer: not connected to, and shown as such."""
    refused = [
        WorkerAddress("old", "tcp://127.0.0.1:9", (9,), "t0", ("ngram",)),
        WorkerAddress("other", "tcp://127.0.0.1:9", SPOKEN, "t1", ("ngram",)),
    ]
    setting.pool.update([*refused, address("no endpoint", "nowhere")])
    setting.step(1, deadline_s=LONG_S)
    assert setting.pool.states() == {
        "nowhere": "open",
        "old": "refused: speaks protocols [9], this verifier [2]",
        "other": "refused: another tokenizer",
    }
    assert setting.pool.stats.violations == {"socket": 1}
    assert setting.pool.stats.messages == 0
    setting.pool.update([])
    assert setting.pool.states() == {}


def test_a_worker_that_leaves_the_list_takes_its_debts_along(setting: Setting) -> None:
    """Its sessions go to the one that came instead, under the same name at another port."""
    gone, come = setting.worker(), setting.worker()
    gone.holding = True
    setting.pool.update([address(gone)])
    setting.step(1, deadline_s=SHORT_S)
    setting.pool.update([address(come)])
    setting.step(1, deadline_s=LONG_S)
    assert drafted(setting.pool, 1, 3) == [3, 4, 5, 6]
    setting.pool.update([address(come)])
    setting.step(1, length=9, deadline_s=LONG_S)
    assert [batch.asks[0].base for batch in come.asked] == [0, 3]
