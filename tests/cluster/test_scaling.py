"""From what is needed to how many there are: at once up, slowly down, never to and fro."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling import Bounds, Memory, Wanted, step

BOUNDS = Bounds(least=1, most=8, keep_s=60.0)


def run(needs: list[tuple[int, int]], target: int = 1, start_s: float = 0.0) -> list[int]:
    """Targets by second, where every started one is there at once."""
    memory, targets = Memory(), []
    for second, (up, keep) in enumerate(needs):
        taken = step(BOUNDS, memory, Wanted(up, keep, "so"), target, target, start_s + second)
        memory, target = taken.memory, taken.target
        targets.append(target)
    return targets


def test_up_is_one_step_however_large() -> None:
    """From one to six at once."""
    assert run([(6, 6)]) == [6]


def test_down_waits_until_fewer_were_enough_for_long() -> None:
    """For `keep_s`, and then goes to the most that was needed in it."""
    targets = run([(4, 4)] * 10 + [(2, 2)] * 30 + [(1, 1)] * 80)
    assert targets[10:69] == [4] * 59
    assert targets[70] == 2
    assert targets[-1] == 1


def test_a_need_on_the_edge_keeps_the_larger_number() -> None:
    """Two and three by turns, with a margin that always says three: one change in all."""
    targets = run([(2, 3), (3, 3)] * 200, target=2)
    assert sum(a != b for a, b in pairwise(targets)) == 1


def test_nobody_is_let_go_while_others_start() -> None:
    """A new one that is not there yet keeps all."""
    memory = Memory()
    for second in range(200):
        taken = step(BOUNDS, memory, Wanted(1, 1, "so"), 4, 3, float(second))
        memory = taken.memory
        assert taken.target == 4
    assert "still start" in taken.reason


def test_nothing_known_changes_nothing_within_bounds() -> None:
    """A controller that starts anew keeps what there is; bounds hold all the same."""
    assert step(BOUNDS, Memory(), None, 5, 5, 0.0).target == 5
    assert step(BOUNDS, Memory(), None, 50, 50, 0.0).target == 8
    assert step(BOUNDS, Memory(), None, 0, 0, 0.0).target == 1


def test_a_new_memory_waits_anew() -> None:
    """After a restart fewer are enough only after another `keep_s`."""
    targets = run([(1, 1)] * 70, target=5, start_s=1e9)
    assert targets[:60] == [5] * 60
    assert targets[61] == 1


def test_a_step_says_from_what_to_what_and_why() -> None:
    """Also that more would be needed than there may be."""
    said = step(BOUNDS, Memory(), Wanted(12, 12, "much is asked"), 2, 2, 0.0).reason
    assert said == "from 2 to 8: much is asked; 12 would be needed"


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 8), st.floats(0.1, 40)),
        max_size=120,
    )
)
def test_targets_stay_in_bounds_and_never_below_the_need(history) -> None:
    """Whatever is needed and whoever is there; memory is bounded by the numbers there can be."""
    memory, target, now_s, last_up = Memory(), 1, 0.0, 0.0
    for up, margin, running, passed_s in history:
        now_s += passed_s
        taken = step(BOUNDS, memory, Wanted(up, up + margin, "so"), target, running, now_s)
        assert BOUNDS.least <= taken.target <= BOUNDS.most
        assert taken.target >= min(up, BOUNDS.most)
        assert len(taken.memory.needs) <= BOUNDS.most
        if taken.target > target:
            last_up = now_s
        if taken.target < target:
            assert running >= target
            assert now_s - last_up >= BOUNDS.keep_s or last_up == 0.0
        memory, target = taken.memory, taken.target
