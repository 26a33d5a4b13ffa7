"""How long a step waits for drafts that are being made."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.patience import Outlook, worth_waiting

DRAFTS = st.lists(
    st.tuples(
        st.lists(st.floats(-1.0, 1.0), max_size=6),
        # What is to come is not there yet: a wait of nothing does not bring it.
        st.builds(
            *(Outlook, st.integers(0, 6), st.floats(0.0, 1.0, exclude_min=True)),
            st.floats(0.0, 0.5),
        ),
    ),
    max_size=6,
)
SPEEDS = st.floats(0.0, 1e4)


def left_over(rows: list[tuple[list[float], Outlook]], wait_s: float, tokens_per_s: float) -> float:
    """Tokens that such a wait brings, without those that the engine makes in the time."""
    come = 0.0
    for places, outlook in rows:
        for more, worth in enumerate(places[outlook.have :]):
            if outlook.next_s + more * outlook.token_s <= wait_s:
                come += worth
    return come - wait_s * tokens_per_s


def test_a_token_is_waited_for_if_it_brings_more_than_the_time() -> None:
    """In 10 ms an engine of 50 tokens/s makes half a token."""
    soon = Outlook(have=1, next_s=0.01, token_s=0.01)
    assert worth_waiting([([0.9, 0.6, 0.4], soon)], 50.0) == 0.01
    assert worth_waiting([([0.9, 0.6, 0.55], soon)], 50.0) == 0.02
    assert worth_waiting([([0.9, 0.45, 0.4], soon)], 50.0) == 0.0


def test_all_sequences_share_a_wait() -> None:
    """What is too little for one is enough for three, those that have their draft do not mind."""
    late, ready = ([0.3], Outlook(0, 0.01)), ([0.9], Outlook(1))
    assert worth_waiting([late], 50.0) == 0.0
    assert worth_waiting([late, ready, late, late], 50.0) == 0.01


def test_what_is_here_or_will_not_come_is_not_waited_for() -> None:
    """However much it would be worth."""
    assert worth_waiting([([1.0], Outlook(1, 0.01)), ([1.0], Outlook(0))], 0.0) == 0.0
    assert worth_waiting([], 1.0) == 0.0


def test_an_infinite_worth_is_always_waited_for() -> None:
    assert worth_waiting([([math.inf, math.inf], Outlook(0, 5.0, 1.0))], 1e9) == 5.0


@given(DRAFTS, SPEEDS, st.floats(0.0, 4.0))
def test_no_other_wait_is_better(
    rows: list[tuple[list[float], Outlook]], tokens_per_s: float, other_s: float
) -> None:
    wait_s = worth_waiting(rows, tokens_per_s)
    best = left_over(rows, wait_s, tokens_per_s)
    assert best >= left_over(rows, other_s, tokens_per_s) - 1e-6
    assert best >= left_over(rows, 0.0, tokens_per_s) - 1e-6


@given(DRAFTS, SPEEDS, st.floats(1.0, 10.0))
def test_a_faster_engine_never_waits_longer(
    rows: list[tuple[list[float], Outlook]], tokens_per_s: float, times: float
) -> None:
    slow, fast = tokens_per_s, tokens_per_s * times
    waits_s = worth_waiting(rows, slow), worth_waiting(rows, fast)
    assert waits_s[1] <= waits_s[0] or left_over(rows, waits_s[1], slow) == pytest.approx(
        left_over(rows, waits_s[0], slow), abs=1e-6
    )
