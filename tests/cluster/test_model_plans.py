"""Where a draft model should run: worked numbers of a measured pair, and what must always hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.model_plans import (
    AHEAD,
    IN_VERIFIER,
    NONE,
    SPLIT,
    WAYS,
    best_of_each,
    hit_chance,
    model_round,
)
from cluster.planner import DraftModel, Profile
from replicas.verifier.step_cost import StepCost

# One core each: the target takes 240 ms a step, its draft 64 ms.
TARGET_S, DRAFT_S = 0.240, 0.064
PAIR = DraftModel(worker_s=DRAFT_S, verifier_s=DRAFT_S)
MISS_S = (3 + 0.5 + 0.15) * DRAFT_S


def profile(rate: float, step_s: float = TARGET_S) -> Profile:
    """A verifier whose step takes as long with drafts as without."""
    return Profile(StepCost(step_s, 0.0), (rate,) * 8)


@pytest.mark.parametrize(
    ("way", "token_ms"), [(NONE, 240), (IN_VERIFIER, 108), (SPLIT, 110.4), (AHEAD, 64)]
)
def test_a_pair_that_always_agrees(way: str, token_ms: float) -> None:
    """Drafts of three bring four tokens: (240 + 3 * 64) / 4, split 0.15 of a step more for what is
    read, and ahead all but max(240, 256).
    """
    made = model_round(profile(1.0), PAIR, way, 1, 3)
    assert made.token_s * 1e3 == pytest.approx(token_ms, abs=0.5)


def test_ahead_a_miss_is_paid_in_full() -> None:
    """h = 0.8^4 = 0.41 of the rounds wait 16 ms, the others 192 ms, half a step and a reading."""
    made = model_round(profile(0.8), PAIR, AHEAD, 1, 3)
    hit = 0.8**4
    assert hit_chance((0.8,) * 3, 3) == pytest.approx(hit)
    assert made.tokens == pytest.approx(2.952)
    assert made.seconds == pytest.approx(0.240 + hit * 0.016 + (1 - hit) * MISS_S)


def test_ahead_a_prepared_miss_is_a_hit() -> None:
    """Half of what 0.8^4 leaves was prepared for; of two sequences both have to be right."""
    hit = 0.8**4 + 0.5 * (1 - 0.8**4)
    assert hit_chance((0.8,) * 3, 3, 0.5) == pytest.approx(hit)
    made = model_round(profile(0.8), replace(PAIR, prepared=0.5), AHEAD, 1, 3)
    assert made.seconds == pytest.approx(0.240 + hit * 0.016 + (1 - hit) * MISS_S)
    both = model_round(profile(0.8), replace(PAIR, prepared=0.5), AHEAD, 2, 3)
    anew = (1 - hit**2) * 3.5 + 2 * (1 - hit) * 0.15
    assert both.seconds == pytest.approx(0.240 + hit**2 * 0.016 + anew * DRAFT_S)


def test_more_hardware_for_the_verifier_may_be_worth_more_than_running_ahead() -> None:
    """With two cores a step takes 164 and 46 ms: at long drafts of a pair that often disagrees
    colocated wins, at short ones of a pair that agrees running ahead on one core each does.
    """
    both = DraftModel(worker_s=DRAFT_S, verifier_s=0.046)

    def token_s(way: str, rate: float, length: int) -> float:
        step_s = 0.164 if way == IN_VERIFIER else TARGET_S
        return model_round(profile(rate, step_s), both, way, 1, length).token_s

    assert token_s(AHEAD, 1.0, 3) < token_s(IN_VERIFIER, 1.0, 3)
    assert token_s(IN_VERIFIER, 0.6, 8) < token_s(AHEAD, 0.6, 8)


def test_the_best_length_of_each_way() -> None:
    """Where drafts are always right, serial drafting wants the longest."""
    choices = best_of_each(profile(1.0), PAIR, 1, 8)
    assert set(choices) == set(WAYS)
    assert choices[NONE].length == 0
    assert choices[SPLIT].length == 8
    assert set(best_of_each(Profile(StepCost(1.0, 0.0), ()), PAIR, 1, 8)) == {NONE}


rates = st.floats(0.0, 1.0)
seconds = st.floats(0.001, 1.0)


@given(rates, seconds, seconds, st.floats(0.0, 0.1), st.integers(1, 8), st.integers(1, 16))
def test_ahead_is_between_split_and_the_verifier_alone(
    rate: float, step_s: float, draft_s: float, trip_s: float, length: int, sequences: int
) -> None:
    """Running ahead never costs more than one step of the model over drafting when asked, and
    never less than verifying; all ways bring the same tokens.
    """
    model = DraftModel(draft_s, draft_s, trip_s)
    known = profile(rate, step_s)
    made = {way: model_round(known, model, way, sequences, length) for way in WAYS[1:]}
    assert len({round(one.tokens, 9) for one in made.values()}) == 1
    assert made[AHEAD].seconds <= made[SPLIT].seconds + draft_s + 1e-9
    assert made[AHEAD].seconds >= step_s + trip_s - 1e-9
    reading_s = 0.15 * sequences * draft_s
    assert made[SPLIT].seconds == pytest.approx(made[IN_VERIFIER].seconds + reading_s + trip_s)
