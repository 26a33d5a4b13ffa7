"""What a step costs, learned from what engines did."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.work_fit import WorkFit

STEP_S, SEQUENCE_S, TOKEN_S = 0.03, 0.001, 0.0003


def sample(fit: WorkFit, rng: random.Random, noise: float = 0.0, prompts: bool = True) -> None:
    """One second or so of an engine that costs what it should."""
    steps, sequences = rng.randint(10, 40), rng.uniform(1, 60)
    tokens = rng.uniform(0, 3000) if prompts else 0.0
    busy_s = STEP_S * steps + SEQUENCE_S * steps * sequences + TOKEN_S * tokens
    fit.add(steps, steps * sequences, tokens, busy_s * (1 + rng.uniform(-noise, noise)))


def test_the_costs_are_found_again() -> None:
    """Exactly without noise, and to a few percent with 20 % of it."""
    clean, noisy, rng = WorkFit(), WorkFit(), random.Random(1)
    for _ in range(400):
        sample(clean, rng)
        sample(noisy, rng, 0.2)
    assert clean.cost().step_s == pytest.approx(STEP_S)
    assert clean.cost().token_s == pytest.approx(TOKEN_S)
    found = noisy.cost()
    assert found.step_s == pytest.approx(STEP_S, rel=0.1)
    assert found.sequence_s == pytest.approx(SEQUENCE_S, rel=0.1)
    assert found.token_s == pytest.approx(TOKEN_S, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_load_blames_no_sequence_for_what_a_step_costs(seed: int) -> None:
    """Two sequences in nearly every step say little of what one costs; noise is not believed."""
    fit, rng = WorkFit(), random.Random(seed)
    for number in range(60):
        steps = rng.randint(14, 24)
        sequence_steps = sum(1 + (rng.random() < 0.93) for _ in range(steps))
        tokens = rng.choice((0, 25, 25, 50, 50, 75))
        busy_s = 0.06 * steps + 0.002 * sequence_steps + 0.002 * tokens
        fit.add(steps, sequence_steps, tokens, busy_s * (1 + rng.gauss(0, 0.1)))
        if number >= 9:
            assert fit.cost().sequence_s < 0.15 * fit.cost().step_s


def test_what_sequences_cost_is_seen_as_soon_as_their_number_changes() -> None:
    """After ten samples of a fuller engine it is known, whatever the steady load before left."""
    fit, rng = WorkFit(), random.Random(4)
    for sequences, samples in ((2, 30), (24, 10)):
        for _ in range(samples):
            steps = rng.randint(10, 20)
            busy_s = steps * (0.055 + 0.0045 * sequences)
            fit.add(steps, steps * sequences, 0.0, busy_s * (1 + rng.gauss(0, 0.05)))
    assert fit.cost().sequence_s == pytest.approx(0.0045, rel=0.2)


def test_too_little_is_told_as_nothing() -> None:
    """A few samples say nothing, and an engine that did nothing has no costs."""
    fit, rng = WorkFit(), random.Random(2)
    for _ in range(5):
        sample(fit, rng)
    assert fit.cost() is None
    empty = WorkFit()
    for _ in range(50):
        empty.add(0, 0, 0, 1.0)
    assert empty.cost() is None


def test_what_was_never_seen_costs_nothing_yet() -> None:
    """Without prompts their cost stays zero, and the others are still found."""
    fit, rng = WorkFit(), random.Random(3)
    for _ in range(100):
        sample(fit, rng, prompts=False)
    assert fit.cost().token_s == 0.0
    assert fit.cost().step_s == pytest.approx(STEP_S, rel=0.01)


counts = st.floats(0, 1e5)


@settings(max_examples=40)
@given(st.lists(st.tuples(counts, counts, counts, st.floats(0.1, 100)), min_size=10, max_size=60))
def test_no_cost_is_below_zero_whatever_comes(samples) -> None:
    """Garbage in gives costs that a forecast can use, or none."""
    fit = WorkFit()
    for row in samples:
        fit.add(*row)
    if (cost := fit.cost()) is not None:
        assert min(cost.step_s, cost.sequence_s, cost.token_s) >= 0.0
