"""Sessions stay where they are unless their own worker is lost."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.placement import (
    ELSEWHERE,
    SAME_NODE,
    SAME_ZONE,
    SPREAD,
    Load,
    Place,
    distance,
    placed,
    ranked,
)

IDS = st.sets(st.text(max_size=12), min_size=1, max_size=8)
SESSION = st.integers(0, (1 << 63) - 1)


@given(SESSION, IDS)
def test_losing_a_worker_changes_nothing_among_the_others(session: int, ids: set[str]) -> None:
    """Each ranking without one is the ranking with it, less that one: nothing else moves."""
    whole = ranked(session, ids)
    assert sorted(whole) == sorted(ids)
    for lost in ids:
        assert ranked(session, ids - {lost}) == [name for name in whole if name != lost]


def test_the_nearest_come_first_and_lots_decide_among_equals() -> None:
    """Same node, then same zone, then elsewhere; those of one kind in the order they had."""
    here = Place("10.0.0.1", "a")
    places = {
        "near": Place("10.0.0.1", "a"),
        "zone-1": Place("10.0.0.2", "a"),
        "zone-2": Place("10.0.0.3", "a"),
        "far": Place("10.0.0.4", "b"),
        "unknown": Place("10.0.0.5"),
    }
    distances = {name: distance(here, place) for name, place in places.items()}
    assert list(distances.values()) == [SAME_NODE, SAME_ZONE, SAME_ZONE, ELSEWHERE, ELSEWHERE]
    for session in range(50):
        order = ranked(session, places, distances)
        assert order[0] == "near"
        assert set(order[1:3]) == {"zone-1", "zone-2"}
        drawn = ranked(session, places)
        assert order[1:3] == [name for name in drawn if name.startswith("zone")]


def test_an_unknown_zone_is_nobodys() -> None:
    """Two nodes without a label are not neighbours."""
    assert distance(Place("10.0.0.1"), Place("10.0.0.2")) == ELSEWHERE


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


def test_a_worker_with_far_more_than_its_share_is_passed_over() -> None:
    """New sessions go to whoever has room, in the order of their ranking; full ones come last."""
    loads = {"a": Load(9), "b": Load(1), "c": Load(1)}
    for session in range(100):
        order = placed(session, loads)
        assert order[-1] == "a"
        assert order[:2] == [name for name in ranked(session, loads) if name != "a"]


def test_shares_are_by_places() -> None:
    """A worker that drafts three times as many at once may have three times as many sessions."""
    loads = {"small": Load(9, 8), "large": Load(9, 24)}
    assert {placed(session, loads)[0] for session in range(100)} == {"large"}
    even = {"small": Load(5, 8), "large": Load(14, 24)}
    assert {placed(session, even)[0] for session in range(100)} == {"small", "large"}


@given(st.lists(SESSION, min_size=1, max_size=60, unique=True), st.integers(1, 6))
def test_no_worker_gets_more_than_its_share_and_a_new_one_no_more(
    sessions: list[int], count: int
) -> None:
    """Placed one after the other, all are within the bound; when another worker comes, it
    gets no more than its share either.
    """
    ids = [f"worker-{i}" for i in range(count)]
    at: dict[int, str] = {}

    def loads(names: list[str]) -> dict[str, Load]:
        return {name: Load(list(at.values()).count(name)) for name in names}

    for session in sessions:
        at[session] = placed(session, loads(ids))[0]
    assert max(load.sessions for load in loads(ids).values()) <= SPREAD * len(at) / count + 1
    more = [*ids, "new"]
    for session in sessions:
        at[session] = placed(session, loads(more), at[session])[0]
    assert loads(more)["new"].sessions <= SPREAD * len(at) / (count + 1) + 1


def test_a_near_worker_is_asked_until_it_has_its_share() -> None:
    """Then the next nearest is."""
    distances = {"near": SAME_NODE, "far": ELSEWHERE}
    for session in range(50):
        assert placed(session, {"near": Load(1), "far": Load(1)}, None, distances)[0] == "near"
        assert placed(session, {"near": Load(9), "far": Load(1)}, None, distances)[0] == "far"
