"""The proposer by itself: a model runner and a pool that do what a test says."""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from replicas.messages import Tokens
from replicas.verifier.draft_accounts import SourceAccount
from replicas.verifier.draft_lengths import DraftLengths, GovernorSettings
from replicas.verifier.draft_pool import DraftPool, Row, SourcedDraft
from replicas.verifier.patience import Patience
from replicas.verifier.proposer import (
    FIRST_WAIT_S,
    LOCAL,
    NEWS_TOKENS,
    Proposer,
    ProposerSettings,
    execution_shapes,
)
from replicas.verifier.request_speculation import SPECULATION
from replicas.verifier.step_cost import StepLoad
from replicas.verifier.step_watch import StepWatch

VOCABULARY, CONTEXT, LONGEST = 100, 64, 4
WORKER = "worker:prompt_lookup"
SURENESS = 0.5


class Runner:
    """vLLM's, as far as the proposer looks at it; a test adds and moves rows."""

    def __init__(self) -> None:
        self.max_model_len = CONTEXT
        self.input_batch = SimpleNamespace(req_ids=[])
        self.requests: dict[str, Any] = {}
        self.sequences: dict[str, list[int]] = {}

    def add(self, request_id: str, prompt: list[int], max_tokens: int | None = None) -> None:
        self.input_batch.req_ids.append(request_id)
        self.requests[request_id] = SimpleNamespace(
            num_prompt_tokens=len(prompt), sampling_params=SimpleNamespace(max_tokens=max_tokens)
        )
        self.sequences[request_id] = list(prompt)

    def end(self, request_id: str) -> None:
        self.input_batch.req_ids.remove(request_id)
        del self.requests[request_id]


class Pool:
    """Remembers what it was asked, and drafts what a test says, by session."""

    def __init__(self) -> None:
        self.asked: list[dict[int, tuple[list[int], int]]] = []
        self.forgotten: list[int] = []
        self.waits_s: list[float] = []
        self.drafts: dict[int, list[int]] = {}
        self.error: Exception | None = None
        self.has_model = False
        self.chosen_s = 0.0

    def exchange(
        self,
        step: Mapping[int, Row],
        forget: Collection[int],
        deadline_s: float,
        patience: Patience | None = None,
    ) -> None:
        self.asked.append({s: (row.context.tolist(), row.wanted) for s, row in step.items()})
        self.forgotten += forget
        self.waits_s.append(deadline_s)
        if self.error is not None:
            raise self.error

    def draft(self, session: int, context: Tokens, wanted: int) -> SourcedDraft | None:
        tokens = self.drafts.get(session)
        if tokens is None:
            return None
        return SourcedDraft(np.array(tokens, dtype=np.int32), WORKER, SURENESS)


class Engine:
    """A proposer between its fakes."""

    def __init__(self, **settings: Any) -> None:
        config = SimpleNamespace(get_vocab_size=lambda: VOCABULARY)
        self.proposer = Proposer(SimpleNamespace(model_config=config))
        self.runner, self.pool, self.watch = Runner(), Pool(), StepWatch()
        told = {
            "max_length": LONGEST,
            "shortest_match": 2,
            "local_lookup": False,
            "wait_fraction": 0.5,
            "wait_max_s": 0.02,
        }
        self.settings = ProposerSettings(**(told | settings))
        self.lengths = DraftLengths(GovernorSettings(LONGEST))

    def connect(self) -> None:
        pool = cast(DraftPool, self.pool)
        self.proposer.connect(self.runner, pool, self.watch, self.settings, self.lengths)

    def step(
        self, new: Mapping[str, list[int]], verified: dict[str, list[int]] | None = None
    ) -> dict[str, list[int]]:
        """One engine step: rows get new tokens, and drafts for the next step come back."""
        self.watch.verified = verified or {}
        rows = self.runner.input_batch.req_ids
        # As vLLM's: rows longer than their sequences, with what others left there.
        tokens = np.full((len(rows) + 2, CONTEXT), -1, dtype=np.int32)
        lengths = np.zeros(len(rows) + 2, dtype=np.int32)
        sampled = [list(new.get(row, [])) for row in rows]
        for i, row in enumerate(rows):
            sequence = self.runner.sequences[row]
            sequence += sampled[i]
            tokens[i, : len(sequence)] = sequence
            lengths[i] = len(sequence)
        drafts = self.proposer.propose(sampled, lengths, tokens, slot_mappings=None)
        return dict(zip(rows, drafts, strict=True))


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.connect()
    return engine


def test_nothing_is_proposed_before_it_is_connected() -> None:
    """Nor ever on the ranks whose proposals don't count."""
    engine = Engine(local_lookup=True)
    engine.runner.add("a", [7, 8, 7, 8, 7])
    assert engine.step({"a": [8]}) == {"a": []}
    engine.proposer.tick()
    assert engine.pool.asked == []
    assert engine.proposer.sessions == 0


def test_rows_that_got_tokens_are_asked_for_and_drafted(engine: Engine) -> None:
    """With their whole sequence; rows in prefill are left out and get nothing."""
    for request_id in ("a", "prefilling", "b"):
        engine.runner.add(request_id, [1, 2, 3])
    engine.pool.drafts = {1: [11, 12], 2: [21]}
    assert engine.step({"a": [4], "b": [5, 6]}) == {"a": [11, 12], "prefilling": [], "b": [21]}
    assert engine.pool.asked == [{1: ([1, 2, 3, 4], LONGEST), 2: ([1, 2, 3, 5, 6], LONGEST)}]


def test_a_session_follows_its_request_wherever_its_row_is(engine: Engine) -> None:
    """Rows swap places, one is preempted and comes back: its number stays, nobody else gets it."""
    for request_id in ("a", "b"):
        engine.runner.add(request_id, [1])
    engine.step({"a": [2], "b": [3]})
    engine.runner.input_batch.req_ids.reverse()
    engine.pool.drafts = {1: [11], 2: [22]}
    assert engine.step({"a": [4], "b": [5]}) == {"b": [22], "a": [11]}
    engine.runner.input_batch.req_ids.remove("a")
    engine.runner.add("c", [9])
    engine.step({"b": [6], "c": [10]})
    engine.runner.input_batch.req_ids.append("a")
    assert engine.step({"a": [7], "b": [8]})["a"] == [11]
    assert engine.pool.asked[-1][1] == ([1, 2, 4, 7], LONGEST)
    assert list(engine.pool.asked[2]) == [2, 3]
    assert engine.pool.forgotten == []
    assert engine.proposer.sessions == 3


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "room"),
    [
        (10, None, LONGEST),
        (10, 100, LONGEST),
        (10, 4, 2),
        (10, 3, 1),
        (10, 2, 0),
        (10, 1, 0),
        (CONTEXT - 1 - LONGEST - 1, None, LONGEST),
        (CONTEXT - 1 - 3, None, 2),
        (CONTEXT - 2, None, 0),
        (CONTEXT - 1, None, 0),
        (CONTEXT - 1 - 3, 3, 1),
    ],
)
def test_a_draft_is_cut_to_what_can_be_of_use(
    engine: Engine, prompt: int, max_tokens: int | None, room: int
) -> None:
    """Behind one new token: by the longest draft, max_tokens and context, less one that is the
    target's own.
    """
    engine.runner.add("a", [1] * prompt, max_tokens)
    engine.pool.drafts = {1: [5] * 50}
    assert engine.step({"a": [2]}) == {"a": [5] * room}
    asked = {1: ([1] * prompt + [2], room)}
    assert engine.pool.asked == [asked if room or prompt >= NEWS_TOKENS else {}]


def test_a_draft_model_reads_a_prompt_while_the_verifier_does(engine: Engine) -> None:
    """Where there is one: it is told of a request before the step that begins to read it, unless
    that wants no drafts; then only of what is new.
    """
    wants = SimpleNamespace(max_tokens=10, extra_args=None)
    wants_none = SimpleNamespace(max_tokens=10, extra_args={SPECULATION: "off"})
    wants_one = SimpleNamespace(max_tokens=1, extra_args=None)
    begun = [
        SimpleNamespace(req_id=request_id, prompt_token_ids=prompt, sampling_params=params)
        for request_id, prompt, params in (
            ("a", [1, 2, 3], wants),
            ("none", [1, 2], wants_none),
            ("one", [1, 2], wants_one),
            ("embeds", None, wants),
        )
    ]
    assert engine.watch.on_prompts is not None
    engine.watch.on_prompts(begun)
    assert engine.pool.asked == []
    engine.pool.has_model = True
    engine.watch.on_prompts(begun)
    assert engine.pool.asked == [{1: ([1, 2, 3], LONGEST)}]
    engine.runner.add("a", [1, 2, 3])
    engine.pool.drafts = {1: [11, 12]}
    assert engine.step({"a": [4]}) == {"a": [11, 12]}
    assert engine.pool.asked[1:] == [{1: ([1, 2, 3, 4], LONGEST)}]
    engine.pool.error = RuntimeError("away")
    engine.watch.on_prompts([SimpleNamespace(**vars(begun[0]) | {"req_id": "b"})])
    assert engine.proposer.failures == 1


def test_a_request_without_sampling_parameters_is_drafted_for(engine: Engine) -> None:
    """Its end is the context's."""
    engine.runner.add("a", [1])
    engine.runner.requests["a"].sampling_params = None
    engine.pool.drafts = {1: [5] * 50}
    assert engine.step({"a": [2]}) == {"a": [5] * LONGEST}


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        ([0, VOCABULARY - 1], [0, VOCABULARY - 1]),
        ([5, VOCABULARY, 6], [5]),
        ([-1, 5], []),
        ([5, 6, 7, 2**31 - 1], [5, 6, 7]),
    ],
)
def test_a_draft_ends_before_the_first_token_of_no_vocabulary(
    engine: Engine, draft: list[int], kept: list[int]
) -> None:
    """One of them would end the engine."""
    engine.runner.add("a", [1])
    engine.pool.drafts = {1: draft}
    assert engine.step({"a": [2]}) == {"a": kept}


def test_prompt_lookup_here_stands_in_for_workers() -> None:
    """Where they have nothing for a row; and not at all where the config says so."""
    engine = Engine(local_lookup=True)
    engine.connect()
    for request_id in ("a", "b"):
        engine.runner.add(request_id, [7, 8, 9, 7])
    engine.pool.drafts = {1: [50], 2: []}
    assert engine.step({"a": [8], "b": [8]}) == {"a": [50], "b": [9, 7, 8, 9]}
    engine.step({"a": [1], "b": [1]}, verified={"a": [50], "b": [9, 7, 8, 9]})
    assert set(engine.proposer.accounts.by_source) == {WORKER, LOCAL}

    without = Engine(local_lookup=False)
    without.connect()
    without.runner.add("b", [7, 8, 9, 7])
    assert without.step({"b": [8]}) == {"b": []}


def test_drafts_count_when_they_were_verified(engine: Engine) -> None:
    """By position: one token behind the accepted ones is the target's; padding is no draft."""
    for request_id in ("a", "b", "dropped"):
        engine.runner.add(request_id, [1])
    engine.pool.drafts = {1: [11, 12, 13], 2: [21, 22], 3: [31]}
    engine.step({"a": [2], "b": [2], "dropped": [2]})
    assert engine.proposer.accounts.by_source == {}
    engine.step(
        {"a": [11, 12, 9], "b": [8], "dropped": [5]},
        verified={"a": [11, 12, 13], "b": [21, -1]},
    )
    assert engine.proposer.accounts.by_source == {WORKER: SourceAccount([2, 1, 1], [1, 1, 0])}


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("x"), MemoryError()])
def test_an_error_costs_drafts_only(
    engine: Engine, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such step is counted, the first is logged, and the next may draft again."""
    engine.runner.add("a", [1])
    engine.pool.drafts, engine.pool.error = {1: [5]}, error
    assert engine.step({"a": [2]}) == {"a": []}
    assert engine.step({"a": [2]}) == {"a": []}
    assert engine.proposer.failures == 2
    assert len(caplog.records) == 1
    engine.pool.error = None
    assert engine.step({"a": [2]}) == {"a": [5]}
    assert engine.pool.asked[-1] == {1: ([1, 2, 2, 2], LONGEST)}


def test_what_is_over_is_forgotten_once(engine: Engine) -> None:
    """At the next step, or at the next tick where no step comes; a new request is a new session."""
    for request_id in ("a", "b"):
        engine.runner.add(request_id, [1])
    engine.step({"a": [2], "b": [2]})
    engine.runner.end("a")
    engine.step({"b": [3]})
    assert engine.pool.forgotten == [1]
    engine.runner.end("b")
    engine.proposer.tick()
    engine.proposer.tick()
    assert engine.pool.forgotten == [1, 2]
    assert engine.pool.waits_s[-1] == 0
    assert engine.proposer.sessions == 0
    engine.runner.add("c", [1])
    engine.step({"c": [2]})
    assert list(engine.pool.asked[-1]) == [3]


@pytest.mark.parametrize(
    ("step_s", "wait_s"), [(0.0, FIRST_WAIT_S), (0.01, 0.005), (0.02, 0.01), (10.0, 0.02)]
)
def test_it_waits_a_part_of_a_step(engine: Engine, step_s: float, wait_s: float) -> None:
    """`wait_fraction` of the mean step, at most `wait_max_s`, and a fixed time before the first."""
    engine.watch.mean_s = step_s
    engine.runner.add("a", [1])
    engine.step({"a": [2]})
    assert engine.pool.waits_s == [wait_s]


def test_time_spent_drafting_is_told_to_the_watch(engine: Engine) -> None:
    """So that it is no part of what a step is measured to take."""
    told: list[float] = []
    engine.watch.drafted = told.append  # type: ignore[method-assign]
    engine.runner.add("a", [1])
    engine.step({"a": [2]})
    engine.pool.error = ValueError()
    engine.step({"a": [2]})
    assert len(told) == 2
    assert min(told) > 0


class Lengths(DraftLengths):
    """Chooses what a test says, and remembers what it was told."""

    def __init__(self, chosen: list[int]) -> None:
        super().__init__(GovernorSettings(LONGEST))
        self.chosen = chosen
        self.longest_worth = LONGEST
        self.told: list[tuple[Any, ...]] = []

    def choose(self, request_ids: Any, params: Any, context: Any, longest: Any) -> list[int]:
        self.told.append(("choose", list(request_ids), list(context), list(longest)))
        return self.chosen[: len(request_ids)]

    def worth(self, request_id: str, source: str, confidence: float, tokens: int) -> int:
        return min(tokens, self.longest_worth)

    def drafted(self, request_id: str, source: str, confidence: float, tokens: int) -> None:
        self.told.append(("drafted", request_id, source, confidence, tokens))

    def settled(self, request_id: str, new_tokens: int, drafted: int) -> None:
        self.told.append(("settled", request_id, new_tokens, drafted))

    def stepped(self, load: Any, seconds: float) -> None:
        self.told.append(("stepped", load, seconds))

    def waited(self, seconds: float, chosen_s: float, asked: bool) -> None:
        self.told.append(("waited", chosen_s, asked))

    def forget(self, request_ids: Any) -> None:
        self.told += [("forget", request_id) for request_id in request_ids]


@pytest.fixture
def governed() -> tuple[Engine, Lengths]:
    engine = Engine()
    engine.lengths = lengths = Lengths([0, 2])
    engine.connect()
    return engine, lengths


def test_workers_are_asked_for_what_is_worth_it(governed: tuple[Engine, Lengths]) -> None:
    """A sequence for which nothing is, is not named, and nobody waits where all are."""
    engine, lengths = governed
    for request_id in ("a", "b"):
        engine.runner.add(request_id, [1, 2, 3])
    engine.pool.drafts = {1: [11, 12, 13], 2: [21, 22, 23]}
    assert engine.step({"a": [4], "b": [5]}) == {"a": [], "b": [21, 22]}
    assert engine.pool.asked == [{2: ([1, 2, 3, 5], 2)}]
    lengths.chosen = [0, 0]
    assert engine.step({"a": [4], "b": [5]}) == {"a": [], "b": []}
    assert engine.pool.asked[1] == {}
    assert engine.pool.waits_s == [FIRST_WAIT_S, 0]


def test_of_a_draft_as_much_is_verified_as_it_is_worth(governed: tuple[Engine, Lengths]) -> None:
    """Which the governor is told in turn."""
    engine, lengths = governed
    lengths.chosen, lengths.longest_worth = [3], 1
    engine.runner.add("a", [1, 2, 3])
    engine.pool.drafts = {1: [11, 12, 13]}
    assert engine.step({"a": [4]}) == {"a": [11]}
    assert ("drafted", "a", WORKER, SURENESS, 1) in lengths.told


def test_a_worker_that_is_asked_nothing_gets_news_now_and_then(
    governed: tuple[Engine, Lengths],
) -> None:
    """So that it need not read a whole answer at once when it is asked again."""
    engine, lengths = governed
    lengths.chosen = [0]
    engine.runner.add("a", [1] * 10)
    for _ in range(2 * NEWS_TOKENS):
        engine.runner.sequences["a"] = engine.runner.sequences["a"][: CONTEXT - 2]
        engine.step({"a": [2]})
    told = [len(asked[1][0]) for asked in engine.pool.asked if asked]
    assert told == [NEWS_TOKENS]
    assert all(wanted == 0 for asked in engine.pool.asked for _, wanted in asked.values())


def test_the_governor_is_told_what_came_of_its_lengths(governed: tuple[Engine, Lengths]) -> None:
    """What was found, what was accepted, how long steps and drafting took, and what is over."""
    engine, lengths = governed
    for request_id in ("a", "b"):
        engine.runner.add(request_id, [1, 2, 3])
    engine.pool.drafts = {2: [21, 22, 23]}
    engine.step({"a": [4], "b": [5]})
    engine.watch._sample = (StepLoad(2, 8, 0), 0.5)
    engine.step({"a": [4], "b": [21, 6]}, verified={"b": [21, 22]})
    engine.runner.end("b")
    engine.step({"a": [4]})
    assert lengths.told == [
        ("settled", "a", 1, 0),
        ("settled", "b", 1, 0),
        ("choose", ["a", "b"], [4, 4], [LONGEST, LONGEST]),
        ("drafted", "b", WORKER, SURENESS, 2),
        ("waited", 0.0, True),
        ("stepped", StepLoad(2, 8, 0), 0.5),
        ("settled", "a", 1, 0),
        ("settled", "b", 2, 2),
        ("choose", ["a", "b"], [5, 6], [LONGEST, LONGEST]),
        ("drafted", "b", WORKER, SURENESS, 2),
        ("waited", 0.0, True),
        ("settled", "a", 1, 0),
        ("choose", ["a"], [6], [LONGEST]),
        ("forget", "b"),
        ("waited", 0.0, False),
    ]


@pytest.mark.parametrize(
    ("mode", "shapes"), [("NONE", ()), ("FULL", (1, 2, 4)), ("PIECEWISE", (1, 2, 4)), (None, ())]
)
def test_execution_shapes_are_those_of_captured_graphs(
    mode: str | None, shapes: tuple[int, ...]
) -> None:
    """Growing; an engine without graphs pads nothing."""
    compilation = SimpleNamespace(
        cudagraph_mode=None if mode is None else SimpleNamespace(name=mode),
        cudagraph_capture_sizes=[4, 1, 2],
    )
    assert execution_shapes(SimpleNamespace(compilation_config=compilation)) == shapes
    assert execution_shapes(SimpleNamespace()) == ()
