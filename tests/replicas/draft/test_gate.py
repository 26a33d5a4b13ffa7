"""When a source's drafts are stopped, and how they come back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.draft.gate import (
    FIRST_CLOSED_S,
    FIRST_TRIES,
    LONGEST_CLOSED_S,
    MAX_GATES,
    Gate,
    Outcome,
    outcome_of,
)

A, B = b"a", b"b"


@pytest.mark.parametrize(
    ("draft", "appended", "tried", "right"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3, 3),
        ([1, 2, 3], [1, 2], 2, 2),
        ([1, 2, 3], [1, 9, 3], 2, 1),
        ([1, 2, 3], [9], 1, 0),
        ([1], [], 0, 0),
    ],
)
def test_a_draft_is_judged_up_to_its_first_wrong_token(
    draft: list[int], appended: list[int], tried: int, right: int
) -> None:
    """As a verifier would have accepted it."""
    outcome = outcome_of(np.array(draft, dtype=np.int32), np.array(appended, dtype=np.int32))
    assert outcome == Outcome(tried, right)


def test_a_source_whose_drafts_are_wrong_is_closed_and_others_are_not() -> None:
    """For its domain only, not before it had its tries, and it is probed when the time is over."""
    gate = Gate()
    for _ in range(FIRST_TRIES - 1):
        gate.saw("fleet", A, Outcome(1, 0), 0.0)
        assert gate.is_open("fleet", A, 0.0)
    gate.saw("fleet", A, Outcome(1, 0), 0.0)
    assert not gate.is_open("fleet", A, 0.0)
    assert gate.is_open("corpus", A, 0.0)
    assert gate.is_open("fleet", B, 0.0)
    assert (gate.closings, gate.closed(0.0), gate.closed(FIRST_CLOSED_S)) == (1, 1, 0)
    assert gate.is_open("fleet", A, FIRST_CLOSED_S)


def test_a_probe_that_fails_closes_for_twice_as_long_up_to_a_bound() -> None:
    """And one that succeeds starts over."""
    gate, now_s, spans = Gate(), 0.0, []
    for _ in range(8):
        gate.saw("fleet", A, Outcome(FIRST_TRIES, 0), now_s)
        span_s = 0.0
        while not gate.is_open("fleet", A, now_s):
            now_s += 1.0
            span_s += 1.0
        spans.append(span_s)
    assert spans[:3] == [FIRST_CLOSED_S, 2 * FIRST_CLOSED_S, 4 * FIRST_CLOSED_S]
    assert max(spans) == LONGEST_CLOSED_S
    gate.saw("fleet", A, Outcome(FIRST_TRIES, FIRST_TRIES), now_s)
    for _ in range(100):
        gate.saw("fleet", A, Outcome(10, 0), now_s)
    assert gate.is_open("fleet", A, now_s + FIRST_CLOSED_S)


def test_drafts_that_pay_keep_it_open() -> None:
    """Half of them right is plenty."""
    gate = Gate()
    for _ in range(1_000):
        gate.saw("fleet", A, Outcome(2, 1), 0.0)
        assert gate.is_open("fleet", A, 0.0)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0, 50)), max_size=60))
def test_it_always_opens_again(seen: list[tuple[int, int, float]]) -> None:
    """Whatever became of the drafts, it is probed within the longest time."""
    gate, now_s = Gate(), 0.0
    for tried, right, passed_s in seen:
        now_s += passed_s
        gate.saw("fleet", A, Outcome(tried, min(tried, right)), now_s)
        assert gate.is_open("fleet", A, now_s + LONGEST_CLOSED_S)


def test_its_memory_is_bounded() -> None:
    """Domains that come and go leave nothing."""
    gate = Gate()
    for number in range(2 * MAX_GATES):
        gate.saw("fleet", b"%d" % number, Outcome(1, 1), 0.0)
    assert len(gate._states) == MAX_GATES
