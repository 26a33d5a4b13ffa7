"""Ranking by predicted cost, as a pure decision."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.policy import affinity, prefix_aware
from router.types import Candidate, Load, Prefill

BLOCK = 32
FAST = Prefill(0.0, 0.001)
candidates = st.lists(
    st.builds(
        Candidate,
        load=st.builds(
            Load,
            replica_id=st.uuids().map(str),
            in_flight=st.integers(0, 50),
            sent_since=st.integers(0, 50),
            last_pick=st.integers(0, 50),
            queued_tokens=st.integers(0, 10_000),
            sent_tokens=st.integers(0, 10_000),
        ),
        device_blocks=st.integers(0, 100),
        coming_blocks=st.integers(0, 100),
        affinity=st.floats(0, 1),
    ),
    unique_by=lambda candidate: candidate.load.replica_id,
    max_size=8,
)


def ranked(*known: Candidate, prompt: int = 2000) -> tuple[str, ...]:
    return prefix_aware(known, prompt, BLOCK)[0].replica_ids


def idle(name: str, **fields: object) -> Candidate:
    return Candidate(Load(name, 0, 0, 0), prefill=FAST, **fields)  # type: ignore[arg-type]


@given(candidates, st.integers(1, 5000), st.randoms())
def test_everybody_is_ranked_once_whatever_the_order(
    known: list[Candidate], prompt: int, random: object
) -> None:
    """Any router process ranks the same facts the same way."""
    first = ranked(*known, prompt=prompt)
    assert sorted(first) == sorted(candidate.load.replica_id for candidate in known)
    shuffled = known.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ranked(*shuffled, prompt=prompt) == first


def test_the_warm_one_is_first_until_waiting_costs_more_than_computing() -> None:
    """And then the prefix is computed a second time."""
    warm = idle("warm", device_blocks=50)
    cold = idle("cold", affinity=1.0)
    assert ranked(warm, cold)[0] == "warm"
    queued = list(range(0, 4000, 100))
    firsts = [
        ranked(replace(warm, load=replace(warm.load, queued_tokens=q)), cold)[0] for q in queued
    ]
    turn = firsts.index("cold")
    assert set(firsts[:turn]) == {"warm"}
    assert set(firsts[turn:]) == {"cold"}
    assert 1000 < queued[turn] < 2500


def test_a_cold_prefix_goes_where_hashing_says() -> None:
    """All idle, nobody warm."""
    assert ranked(idle("a", affinity=0.1), idle("b", affinity=0.7), idle("c", affinity=0.4)) == (
        "b",
        "c",
        "a",
    )


def test_a_burst_of_one_new_prefix_meets_in_one_place() -> None:
    """The second request waits for the first one's blocks instead of computing them again."""
    first = replace(idle("a", coming_blocks=60), load=Load("a", 0, 1, 1, sent_tokens=2000))
    assert ranked(first, idle("b", affinity=1.0))[0] == "a"


def test_a_request_that_can_wait_goes_where_it_costs_others_least() -> None:
    """It waits at the warm one, where an urgent one would rather be computed again."""
    warm = replace(idle("a", device_blocks=60), load=Load("a", 0, 0, 0, queued_tokens=4000))
    cold = idle("b", affinity=1.0)
    assert ranked(warm, cold)[0] == "b"
    assert prefix_aware([warm, cold], 2000, BLOCK, wait_weight=0.05)[0].replica_ids[0] == "a"


def test_the_more_is_waiting_the_less_is_computed_twice() -> None:
    """Waiting at the warm one beats computing again, once others would wait for that."""
    warm = replace(idle("a", device_blocks=60), load=Load("a", 0, 0, 0, queued_tokens=3000))
    calm = idle("b", affinity=1.0)
    assert ranked(warm, calm)[0] == "b"
    busy = [
        replace(candidate, load=replace(candidate.load, waiting=2)) for candidate in (warm, calm)
    ]
    assert ranked(*busy)[0] == "a"


def test_a_reason_is_given() -> None:
    """With the parts of the cost."""
    ranking, cost = prefix_aware([idle("a", device_blocks=3)], 200, BLOCK)
    assert cost is not None
    assert cost.prefill_tokens == 200 - 3 * BLOCK
    assert "holds 3+0 blocks" in ranking.reason
    assert prefix_aware([], 5, BLOCK) == (prefix_aware([], 9, BLOCK)[0], None)


@given(st.integers(0, 2**64 - 1))
def test_hashing_is_the_same_for_all_and_between_0_and_1(key: int) -> None:
    """Stable by its definition, not by Python's."""
    assert 0 <= affinity("v", key) < 1
    assert affinity("v", key) == affinity("v", key)


def test_keys_are_spread_and_few_move_when_one_leaves() -> None:
    """Consistent hashing: only the leaver's prompts find another place."""
    names = [f"verifier-{n}" for n in range(8)]
    place = {key: max(names, key=lambda n: affinity(n, key)) for key in range(4000)}
    shares = Counter(place.values())
    assert min(shares.values()) > 350
    assert max(shares.values()) < 650
    for key, name in place.items():
        if name != names[0]:
            assert max(names[1:], key=lambda n: affinity(n, key)) == name
