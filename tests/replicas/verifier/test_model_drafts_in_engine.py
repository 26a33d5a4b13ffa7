"""Greedy answers of an engine are the same tokens with a draft model in a worker and without.

The draft model is a noisy copy of the target, so that it is often right and often wrong, and
runs in vLLM in a process of its own; the verifier waits for it, so that nothing depends on time.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import CONTEXT, VOCABULARY, Ask, EngineProcess
from related_models import make_noisy_copy

DRAFT_CONTEXT, LONGEST_DRAFT = 192, 4
PATIENCE_S = 3.0
NOISE = 0.02


@pytest.fixture(scope="module")
def drafting(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """With a draft worker whose model has a shorter context than the target."""
    folder = tmp_path_factory.mktemp("drafting")
    draft = make_noisy_copy(folder / "draft", tiny, noise=NOISE)
    workers = {
        "kinds": ["model"],
        "draft": {
            "source": str(draft),
            "dtype": "float32",
            "eager": True,
            "max_model_len": DRAFT_CONTEXT,
            "memory_gib": 0.25,
            "lookahead": 6,
            "sessions": 12,
        },
    }
    with EngineProcess(
        tiny,
        folder / "log",
        LONGEST_DRAFT,
        {"local_lookup": False},
        workers=workers,
        patience_s=PATIENCE_S,
        max_model_len=CONTEXT,
        max_num_seqs=24,
    ) as process:
        yield process


def prompt(seed: int, length: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, VOCABULARY) for _ in range(length)]


def test_a_draft_model_changes_no_token_and_runs_ahead(
    plain: EngineProcess, drafting: EngineProcess
) -> None:
    """More sequences than the draft model runs at once, coming and going: the same answers, many
    of their tokens drafted, and a part of the drafts there before they were asked for.
    """
    asks = [
        Ask(prompt=prompt(i, 5 + 37 * i % 60), max_tokens=20 + 29 * i % 50, arrives_at=i // 2)
        for i in range(20)
    ]
    right, drafted = plain.run(asks), drafting.run(asks, "model")
    assert drafted.tokens == right.tokens
    assert drafted.failures == drafted.violations == 0
    assert drafted.sessions == drafted.worker_sessions == 0
    assert set(drafted.drafted_by) == {"worker:model"}
    assert 0 < drafted.accepted_by["worker:model"] < drafted.drafted_by["worker:model"]
    assert drafted.accepted_from_workers > 200
    assert drafted.model["ready"] > 0
    assert drafted.model["restarted"] > 0


def test_drafts_end_where_the_draft_model_does(
    plain: EngineProcess, drafting: EngineProcess
) -> None:
    """A text beyond the draft model's context goes on without drafts, and has them up to there."""
    asks = [Ask(prompt=prompt(99, DRAFT_CONTEXT - 30), max_tokens=70)]
    right, drafted = plain.run(asks), drafting.run(asks, "model")
    assert drafted.tokens == right.tokens
    ends = [p.length + len(p.draft) for p in drafted.proposals[0] if p.draft]
    assert ends
    assert max(ends) <= DRAFT_CONTEXT
    assert max(ends) >= DRAFT_CONTEXT - 1


def test_drafting_is_as_good_behind_a_cached_prefix(drafting: EngineProcess) -> None:
    """A request whose prompt is found in the target's cache is drafted like any other: the draft
    model reads the prompt by itself.
    """
    ask = Ask(prompt=prompt(7, 100), max_tokens=60)
    first, again = (drafting.run([ask], "model") for _ in range(2))
    assert again.answers[0].cached_tokens > first.answers[0].cached_tokens
    assert again.tokens == first.tokens
    assert abs(again.accepted - first.accepted) <= 0.1 * first.accepted


def test_a_worker_that_is_killed_costs_drafts_and_no_answer(
    plain: EngineProcess, drafting: EngineProcess
) -> None:
    """The last test, for its worker is gone then: drafts until it dies, the same tokens after."""
    asks = [Ask(prompt=prompt(i, 20), max_tokens=60) for i in range(200, 206)]
    right, drafted = plain.run(asks), drafting.run(asks, "model", kills_at=8)
    assert drafted.tokens == right.tokens
    assert drafted.failures == drafted.violations == drafted.sessions == 0
    assert drafted.accepted_from_workers > 0
