"""Ranking by load, as a pure decision."""

from hypothesis import given
from hypothesis import strategies as st

from router.policy import least_loaded
from router.types import Load

loads = st.lists(
    st.builds(
        Load,
        replica_id=st.uuids().map(str),
        in_flight=st.integers(0, 1000),
        sent_since=st.integers(0, 1000),
        last_pick=st.integers(0, 1000),
    ),
    unique_by=lambda load: load.replica_id,
)


@given(loads)
def test_every_verifier_is_ranked_once(known: list[Load]) -> None:
    """Nobody is lost, nobody twice."""
    assert sorted(least_loaded(known).replica_ids) == sorted(load.replica_id for load in known)


@given(loads.filter(bool))
def test_nobody_behind_the_first_has_less_to_do(known: list[Load]) -> None:
    """Reported and sent since count alike."""
    total = {load.replica_id: load.in_flight + load.sent_since for load in known}
    order = [total[replica_id] for replica_id in least_loaded(known).replica_ids]
    assert order == sorted(order)


@given(loads, st.randoms())
def test_the_order_of_the_input_means_nothing(known: list[Load], random: object) -> None:
    """Any router process ranks the same facts the same way."""
    shuffled = known.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert least_loaded(shuffled) == least_loaded(known)


def test_equal_loads_take_turns() -> None:
    """Of two idle verifiers the one picked longer ago is next."""
    ranking = least_loaded([Load("a", 0, 0, 7), Load("b", 0, 0, 3)])
    assert ranking.replica_ids == ("b", "a")
    assert "fewest in flight" in ranking.reason


def test_no_verifier_is_an_answer_with_a_reason() -> None:
    """An empty ranking says why."""
    assert least_loaded([]).reason == "no verifier is ready"
