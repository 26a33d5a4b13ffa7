"""Sessions stay where they are unless their own worker is lost."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.placement import ranked

IDS = st.sets(st.text(max_size=12), min_size=1, max_size=8)
SESSION = st.integers(0, (1 << 63) - 1)


@given(SESSION, IDS)
def test_losing_a_worker_changes_nothing_among_the_others(session: int, ids: set[str]) -> None:
    """Each ranking without one is the ranking with it, less that one: nothing else moves."""
    whole = ranked(session, ids)
    assert sorted(whole) == sorted(ids)
    for lost in ids:
        assert ranked(session, ids - {lost}) == [name for name in whole if name != lost]


def test_the_order_in_which_workers_are_named_does_not_matter() -> None:
    """Two lists of the same workers place every session alike."""
    ids = [f"worker-{i}" for i in range(10)]
    assert all(ranked(s, ids) == ranked(s, reversed(ids)) for s in range(100))


def test_a_ranking_is_the_same_in_every_process() -> None:
    """It is written down here: a Python that hashes otherwise would not find it again."""
    assert ranked(7, ["a", "b", "c"]) == ["c", "a", "b"]


def test_sessions_spread_evenly_and_those_of_a_lost_worker_too() -> None:
    """Each of five workers has about a fifth; a lost one's go to all the others."""
    ids = [f"worker-{i}" for i in range(5)]
    first = Counter(ranked(session, ids)[0] for session in range(5000))
    assert all(800 < first[name] < 1200 for name in ids)
    second = Counter(
        ranked(session, ids)[1] for session in range(5000) if ranked(session, ids)[0] == ids[0]
    )
    assert all(150 < second[name] < 350 for name in ids[1:])
