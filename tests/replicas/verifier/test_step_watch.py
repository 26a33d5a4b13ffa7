"""What is seen of a model runner's steps: their parts in seconds, and what they verify."""

from types import SimpleNamespace
from typing import Any

import pytest

from replicas.verifier import step_watch
from replicas.verifier.step_cost import StepLoad
from replicas.verifier.step_watch import IDLE_S, OUTLIER, SMOOTHING, StepWatch


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


class Runner:
    """Has the three methods of vLLM's runner that are watched; each takes its time."""

    def __init__(self, clock: Clock, watch: StepWatch) -> None:
        self.clock, self.watch = clock, watch
        self.takes_s = {"prepare": 1 / 64, "forward": 1 / 16, "sample": 1 / 32, "draft": 1 / 128}

    def execute_model(self, output: Any, tensors: Any = None) -> str:
        self.clock.passes(self.takes_s["prepare"])
        if output.total_num_scheduled_tokens:
            self._model_forward(tensors, positions=None)
        return "executed"

    def _model_forward(self, tensors: Any, positions: Any) -> None:
        self.clock.passes(self.takes_s["forward"])

    def sample_tokens(self, grammar: Any) -> str:
        self.clock.passes(self.takes_s["sample"] + self.takes_s["draft"])
        self.watch.drafted(self.takes_s["draft"])
        return "sampled"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_watch, "time", clock)
    return clock


@pytest.fixture
def watch() -> StepWatch:
    return StepWatch()


@pytest.fixture
def runner(clock: Clock, watch: StepWatch) -> Runner:
    runner = Runner(clock, watch)
    watch.attach(runner)
    return runner


def scheduled(tokens: int = 4, drafts: dict[str, list[int]] | None = None) -> Any:
    """vLLM's scheduler output, as far as it is looked at."""
    return SimpleNamespace(
        total_num_scheduled_tokens=tokens,
        scheduled_spec_decode_tokens=drafts or {},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={},
    )


def step(runner: Runner, **what: Any) -> None:
    runner.execute_model(scheduled(**what))
    runner.sample_tokens(None)


def test_a_step_is_split_into_its_parts(runner: Runner, watch: StepWatch, clock: Clock) -> None:
    """Two steps, with a pause between them that is `commit`."""
    step(runner)
    clock.passes(1 / 256)
    step(runner)
    assert watch.steps == 2
    assert watch.total_s == {
        "prepare": 2 / 64,
        "verify": 2 * (1 / 16 + 1 / 32),
        "draft": 2 / 128,
        "commit": 1 / 256,
    }


def test_methods_still_take_and_return_what_they_did(runner: Runner) -> None:
    """The runner's other callers see no difference."""
    assert runner.execute_model(scheduled(), tensors=None) == "executed"
    assert runner.sample_tokens(None) == "sampled"


def test_the_mean_of_step_times_leaves_out_drafting(
    runner: Runner, watch: StepWatch, clock: Clock
) -> None:
    """It is known after the first whole step, and what deadlines are made from."""
    step(runner)
    assert watch.mean_s == 0
    clock.passes(1 / 256)
    step(runner)
    once_s = 1 / 64 + 1 / 16 + 1 / 32 + 1 / 256
    assert watch.mean_s == once_s
    runner.takes_s["draft"] = 0.25
    for _ in range(20):
        clock.passes(1 / 256)
        step(runner)
    assert watch.mean_s == pytest.approx(once_s)


def test_one_long_step_moves_the_mean_a_little(
    runner: Runner, watch: StepWatch, clock: Clock
) -> None:
    """A long prefill counts as `OUTLIER` steps, however long it took."""
    step(runner)
    step(runner)
    before_s = watch.mean_s
    runner.takes_s["forward"] = 1000.0
    step(runner)
    step(runner)
    assert watch.mean_s == pytest.approx(before_s * (1 + SMOOTHING * (OUTLIER - 1)))


def test_an_idle_engine_commits_nothing(runner: Runner, watch: StepWatch, clock: Clock) -> None:
    """A pause without requests is part of no step."""
    step(runner)
    clock.passes(IDLE_S)
    step(runner)
    assert watch.total_s["commit"] == 0
    assert watch.mean_s == 0


def test_a_step_without_tokens_is_none(runner: Runner, watch: StepWatch) -> None:
    """vLLM also calls its runner to tell it what has ended."""
    runner.execute_model(scheduled(tokens=0))
    runner.sample_tokens(None)
    assert watch.steps == 0
    step(runner)
    assert watch.steps == 1


def test_what_the_current_step_verifies_is_known(runner: Runner, watch: StepWatch) -> None:
    """By engine request id, until the next step begins."""
    step(runner, drafts={"a": [5, 6]})
    assert watch.verified == {"a": [5, 6]}
    step(runner)
    assert watch.verified == {}


def decoding(computed: dict[str, int], drafts: dict[str, list[int]], **scheduled: int) -> Any:
    """vLLM's scheduler output of a step that computes so many tokens of each request."""
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=drafts,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(computed), num_computed_tokens=list(computed.values())
        ),
        num_scheduled_tokens=scheduled,
    )


def test_a_step_of_pure_decoding_is_a_sample_of_what_steps_cost(
    runner: Runner, watch: StepWatch, clock: Clock
) -> None:
    """Its rows and KV tokens, and its time without drafting; it is told once."""
    output = decoding({"a": 100, "b": 50}, {"b": [7, 8]}, a=1, b=3)
    runner.execute_model(output)
    runner.sample_tokens(None)
    assert watch.take_sample() is None
    clock.passes(1 / 256)
    step(runner)
    assert watch.take_sample() == (StepLoad(4, 150, 100, 2), 1 / 64 + 1 / 16 + 1 / 32 + 1 / 256)
    assert watch.take_sample() is None


@pytest.mark.parametrize("pause_s", [1 / 256, IDLE_S])
def test_a_step_with_a_prompt_in_it_or_before_a_pause_is_none(
    runner: Runner, watch: StepWatch, clock: Clock, pause_s: float
) -> None:
    """A new prompt, a chunk of one, or an engine with nothing to do."""
    new = decoding({}, {}, a=20)
    new.scheduled_new_reqs = ["a"]
    chunk = decoding({"a": 20, "b": 50}, {}, a=20, b=1)
    idle = decoding({"a": 20}, {}, a=1)
    for output in (new, chunk) if pause_s < IDLE_S else (idle,):
        runner.execute_model(output)
        runner.sample_tokens(None)
        clock.passes(pause_s)
    step(runner)
    assert watch.take_sample() is None
