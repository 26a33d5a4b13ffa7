"""Probes: when one is made, and that all together stay within their share."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.probing import FIRST_GAP_STEPS, LONGEST_GAP_STEPS, Probes, Turn

STEP_S = 0.02


def test_a_probe_is_made_when_its_price_was_earned() -> None:
    """One per cent of step time pays a probe of a tenth of a step every ten steps."""
    probes, turn, at = Probes(0.01), Turn(-FIRST_GAP_STEPS), []
    for step in range(100):
        probes.earn(STEP_S)
        if probes.pick([(3, turn)], 0.1 * STEP_S, step) is not None:
            at.append(step)
            turn.came_back(True, step)
    assert 8 <= len(at) <= 10
    assert min(b - a for a, b in itertools.pairwise(at)) >= 9


def test_the_row_that_waited_longest_is_probed() -> None:
    """Among those that are due."""
    probes = Probes(0.1)
    early, late, later = Turn(0), Turn(5), Turn(100)
    for _ in range(50):
        probes.earn(STEP_S)
    rows = [(0, later), (1, late), (2, early)]
    assert probes.pick(rows, 0.001, 50) == 2
    assert probes.pick(rows, 0.001, 50) == 1
    assert probes.pick(rows, 0.001, 50) is None


def test_probes_in_vain_come_ever_less_often() -> None:
    """Twice the steps each time up to a limit; one that was right begins anew."""
    turn, gaps = Turn(0), []
    for _ in range(8):
        turn.came_back(False, 0)
        gaps.append(turn.gap_steps)
    assert gaps[:2] == [2 * FIRST_GAP_STEPS, 4 * FIRST_GAP_STEPS]
    assert gaps[-1] == LONGEST_GAP_STEPS
    turn.came_back(True, 0)
    assert turn.gap_steps == FIRST_GAP_STEPS


def test_a_probe_that_costs_many_steps_is_made_at_last() -> None:
    """It is saved up for, however long."""
    probes, turn = Probes(0.01), Turn(-FIRST_GAP_STEPS)
    made = []
    for step in range(1200):
        probes.earn(STEP_S)
        if probes.pick([(0, turn)], 5 * STEP_S, step) is not None:
            made.append(step)
    assert made == [499, 999]


@given(
    st.floats(0, 0.1),
    st.lists(st.tuples(st.floats(1e-3, 0.1), st.floats(1e-4, 0.2)), max_size=200),
)
def test_all_probes_cost_no_more_than_their_share(
    share: float, steps: list[tuple[float, float]]
) -> None:
    """Of the time of all steps so far, whatever each costs."""
    probes, turn, time_s = Probes(share), Turn(-FIRST_GAP_STEPS), 0.0
    for step, (step_s, price_s) in enumerate(steps):
        probes.earn(step_s)
        time_s += step_s
        if probes.pick([(0, turn)], price_s, step) is not None:
            turn.came_back(True, step)
        assert probes.cost_s <= share * time_s + 1e-9
