"""A draft worker with a model: answers when the drafts are there, and nobody waits for another."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import numpy as np
import pytest
from counting_engine import CountingEngine
from waiting import until

from replicas.draft.drafters import PromptLookup
from replicas.draft.running_ahead import RunningAhead
from replicas.draft.service import DraftService, ServiceSettings
from replicas.messages import SPOKEN, Codec, Tokens
from replicas.verifier.draft_pool import DraftPool, Row, WorkerAddress
from replicas.verifier.patience import Outlook

CODEC = Codec(b"the token of the tests")
VOCABULARY = 1000
SETTINGS = ServiceSettings(
    host="127.0.0.1",
    advertised_host="127.0.0.1",
    first_port=31_800,
    last_port=31_899,
    vocab_size=VOCABULARY,
    memory_bytes=1 << 20,
    ahead=2,
)
PATIENCE_S = 20.0


class Setting:
    """A worker whose model steps when it is told to, and a verifier's pool that asks it."""

    def __init__(self, stack: ExitStack, lookahead: int = 3, lookup: bool = False) -> None:
        self.engine = CountingEngine(1_000_000, VOCABULARY)
        stack.callback(self.engine.free)
        self.model = RunningAhead(lambda: self.engine, lookahead, 0, 8)
        drafters = [PromptLookup(2)] if lookup else []
        self.service = stack.enter_context(
            DraftService(SETTINGS, CODEC, drafters, model=self.model)
        )
        stack.callback(self.engine.free)
        assert self.model.wait_until_ready(PATIENCE_S)
        self.pool = DraftPool(CODEC, VOCABULARY, "tokenizer")
        stack.callback(self.pool.close)
        kinds = tuple(self.service.kinds)
        self.pool.update([WorkerAddress("w", self.service.endpoint, SPOKEN, "tokenizer", kinds)])

    def exchange(self, wait_s: float, *rows: tuple[int, Tokens, int]) -> None:
        step = {session: Row(context, wanted) for session, context, wanted in rows}
        self.pool.exchange(step, [], wait_s)

    def draft(self, session: int, context: Tokens, wanted: int) -> tuple[list[int], str]:
        draft = self.pool.draft(session, context, wanted)
        return (draft.tokens.tolist(), draft.source) if draft is not None else ([], "")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def test_a_verifier_gets_what_the_model_says_as_soon_as_it_is_there(stack: ExitStack) -> None:
    """The first ask waits for all that is wanted; what was generated meanwhile is there at once."""
    setting = Setting(stack)
    setting.engine.free()
    context = tokens(10, 20, 30)
    setting.exchange(PATIENCE_S, (1, context, 3))
    assert setting.draft(1, context, 3) == ([31, 32, 33], "worker:model")
    until(lambda: setting.model.stats().counts.generated >= 6)
    context = tokens(10, 20, 30, 31, 32)
    setting.exchange(PATIENCE_S, (1, context, 3))
    assert setting.draft(1, context, 3)[0] == [33, 34, 35]
    until(lambda: setting.model.stats().counts.ready == 1)


def test_a_slow_model_costs_drafts_and_not_the_worker(stack: ExitStack) -> None:
    """Nothing comes by the deadline, again and again: the breaker stays closed, since the worker
    says that it is at it; what comes late is the next draft.
    """
    setting = Setting(stack)
    context = tokens(1, 2)
    for turn in range(6):
        setting.exchange(0.05, (1, context, 2))
        assert setting.draft(1, context, 2) == ([], "")
        context = tokens(*context.tolist(), 500 + turn)
    assert setting.pool.states() == {"w": "closed"}
    assert setting.pool.stats.silences == 0
    setting.exchange(0.05, (1, context, 2))
    setting.engine.free()
    until(lambda: setting.model.stats().counts.generated >= 5)

    def came_late() -> bool:
        setting.exchange(0.0, (1, context, 0))
        return len(setting.draft(1, context, 2)[0]) == 2

    until(came_late)
    assert setting.draft(1, context, 2)[0] == [506, 507]


def test_a_session_that_waits_keeps_no_other_from_its_answer(stack: ExitStack) -> None:
    """Prompt lookup is sure of one session and is answered at once, while the model has said
    nothing of the other; that one's answer follows by itself.
    """
    setting = Setting(stack, lookup=True)
    sure, unsure = tokens(*range(20), *range(14)), tokens(5, 6)
    setting.exchange(0.0, (1, sure, 2), (2, unsure, 2))

    def answered() -> bool:
        setting.pool.exchange({}, [], 0.0)
        return setting.draft(1, sure, 2) == ([14, 15], "worker:prompt_lookup")

    until(answered)
    assert setting.draft(2, unsure, 2) == ([], "")
    setting.engine.allow(2)

    def followed() -> bool:
        setting.pool.exchange({}, [], 0.0)
        return setting.draft(2, unsure, 2) == ([7, 8], "worker:model")

    until(followed)
    assert setting.engine.prompts == [unsure.tolist()]


def test_an_unsure_guess_stands_in_until_the_model_has_spoken(stack: ExitStack) -> None:
    """A short match of prompt lookup is used where the model is late, and only there."""
    setting = Setting(stack, lookup=True)
    context = tokens(7, 8, 50, 1, 7, 8)
    setting.exchange(0.2, (1, context, 2))
    assert setting.draft(1, context, 2) == ([50, 1], "worker:prompt_lookup")
    setting.engine.free()

    def replaced() -> bool:
        setting.pool.exchange({}, [], 0.0)
        return setting.draft(1, context, 2) == ([9, 10], "worker:model")

    until(replaced)


def test_a_step_waits_only_for_what_may_come_in_time(stack: ExitStack) -> None:
    """The worker says when it expects more; beyond the deadline nobody waits for it."""
    setting = Setting(stack)
    setting.model._pace.step_s = 30.0
    context = tokens(1, 2)
    started_s = time.monotonic()
    setting.exchange(10.0, (1, context, 2))
    assert time.monotonic() - started_s < 9.0
    assert setting.pool.stats.deadline_misses == 0
    assert setting.pool.states() == {"w": "closed"}


def test_a_step_waits_no_longer_than_it_is_worth(stack: ExitStack) -> None:
    """As soon as the worker has said what there is, the verifier says how long to wait for more:
    again with each token, and in the end for no longer. That is no miss.
    """
    setting = Setting(stack)
    context = tokens(10, 20, 30)
    seen: list[Outlook] = []

    def patience(outlooks: Mapping[int, Outlook]) -> float:
        seen.append(outlooks[1])
        if seen[-1].have == 0:
            setting.engine.allow(len(seen) == 1)
            return PATIENCE_S
        return 0.0

    setting.pool.exchange({1: Row(context, 3)}, [], PATIENCE_S, patience)
    assert setting.draft(1, context, 3) == ([31], "worker:model")
    assert [outlook.have for outlook in (seen[0], seen[-1])] == [0, 1]
    assert all(0 <= outlook.next_s < PATIENCE_S for outlook in seen)
    assert setting.pool.stats.deadline_misses == 0
    assert 0 < setting.pool.chosen_s < PATIENCE_S
    setting.exchange(0.0)
    assert setting.pool.chosen_s == 0.0


def test_a_model_that_fails_ends_the_service_and_no_verifier(stack: ExitStack) -> None:
    """Its worker counts as dead, for whoever watches it; until then it answers without drafts."""
    setting = Setting(stack)
    setting.engine.fails = True
    context = tokens(1, 2)
    setting.exchange(0.0, (1, context, 2))
    setting.engine.free()
    until(lambda: not setting.service.is_alive)
    context = tokens(1, 2, 3)
    setting.exchange(PATIENCE_S, (1, context, 2))
    assert setting.draft(1, context, 2) == ([], "")
    assert setting.pool.stats.deadline_misses == 0


def test_sessions_that_are_over_leave_the_model(stack: ExitStack) -> None:
    """What a verifier forgets, the model forgets."""
    setting = Setting(stack)
    setting.engine.free()
    setting.exchange(PATIENCE_S, (1, tokens(1, 2), 2), (2, tokens(3, 4), 2))
    assert setting.model.stats().sessions == 2
    setting.pool.exchange({}, [1, 2], 0.0)
    until(lambda: setting.model.stats().sessions == setting.model.stats().running == 0)


def test_sessions_that_find_no_memory_leave_the_model(stack: ExitStack) -> None:
    """A context that the worker drops is not kept by its model either."""
    setting = Setting(stack)
    setting.engine.free()
    long = np.arange(150_000, dtype=np.int32) % VOCABULARY
    for session in range(4):
        setting.exchange(PATIENCE_S, (session, long, 1))
    until(lambda: setting.model.stats().sessions < 3)


def test_tenants_share_no_cached_blocks_of_the_draft_model(stack: ExitStack) -> None:
    """Blocks are salted by sharing domain; where there is none, by session."""
    salts: list[str] = []
    setting = Setting(stack)
    change = setting.engine.change

    def watched(plan: object) -> None:
        salts.extend(start.salt for start in plan.start)  # type: ignore[attr-defined]
        change(plan)  # type: ignore[arg-type]

    setting.engine.change = watched  # type: ignore[method-assign]
    setting.engine.free()
    rows = {
        1: Row(tokens(1, 2), 1, b"one"),
        2: Row(tokens(1, 2), 1, b"one"),
        3: Row(tokens(1, 2), 1, b"other"),
        4: Row(tokens(1, 2), 1),
        5: Row(tokens(1, 2), 1),
    }
    setting.pool.exchange(rows, [], PATIENCE_S)
    until(lambda: len(salts) == 5)
    assert len(set(salts)) == 4
