"""Who holds how much of a prompt, within a bound."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.prefix_index import BYTES_A_BLOCK, NOTHING, SMALL_BYTES, Match, PrefixIndex

CHAIN = [1000 + i for i in range(300)]


def index_of(*blocks: int, tier: str = "device", max_blocks: int = 10_000) -> PrefixIndex:
    index = PrefixIndex(max_blocks)
    index.replace("v", {tier: set(blocks)})
    return index


@given(st.integers(0, 300), st.integers(0, 300))
def test_galloping_finds_the_end_of_a_run(held: int, asked: int) -> None:
    """Whatever its length, and whatever the prompt's."""
    index = index_of(*CHAIN[:held], 5, 6, 7)
    match = index.match("v", CHAIN[:asked])
    assert match == Match(min(held, asked), 0)
    assert index.confirm("v", CHAIN[:asked], match) == match


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_what_is_confirmed_is_held_block_by_block(device: set[int], host: set[int]) -> None:
    """However many holes a run has."""
    index = PrefixIndex(1000)
    index.replace("v", {"device": {CHAIN[i] for i in device}, "host": {CHAIN[i] for i in host}})
    match = index.match("v", CHAIN[:41])
    sure = index.confirm("v", CHAIN[:41], match)
    assert set(range(sure.device_blocks)) <= device
    assert set(range(sure.device_blocks, sure.blocks)) <= host


def test_colder_tiers_go_on_where_the_nearer_ends() -> None:
    """Device, then main memory, then storage."""
    index = PrefixIndex(1000)
    index.replace(
        "v", {"device": set(CHAIN[:3]), "host": set(CHAIN[:5]), "storage": set(CHAIN[5:9])}
    )
    assert index.match("v", CHAIN) == Match(3, 6, 4)
    assert index.confirm("v", CHAIN, Match(3, 6, 4)) == Match(3, 6, 4)


def test_what_others_put_within_reach_counts_as_colder() -> None:
    """A node's memory first, then what all nodes share, after what the verifier has itself."""
    index = PrefixIndex(1000)
    index.replace("w", {"host": set(CHAIN[:5]), "storage": set(CHAIN[:9])})
    assert index.shared_runs("w", CHAIN) == (5, 9)
    assert index.shared_runs("nobody", CHAIN) == (0, 0)
    assert NOTHING.reaching(5, 9) == Match(0, 9, 4)
    assert Match(3, 0).reaching(5, 9) == Match(3, 6, 4)
    assert Match(7, 0).reaching(5, 9) == Match(7, 2, 2)
    assert Match(12, 0).reaching(5, 9) == Match(12, 0)
    assert Match(3, 3, 1).reaching(0, 0) == Match(3, 3, 1)


def test_a_removed_verifier_leaves_nothing() -> None:
    """No block, no name."""
    index = index_of(*CHAIN)
    index.replace("w", {"device": set(CHAIN[:10])})
    index.forget("v")
    index.forget("nobody")
    assert len(index) == 10
    assert index.replicas == ("w",)
    assert index.match("v", CHAIN) == NOTHING


def test_an_unknown_verifier_gains_nothing() -> None:
    """Changes of one that has no account yet are dropped."""
    index = PrefixIndex(10)
    index.add("v", "device", CHAIN[:3])
    index.remove("v", "device", CHAIN[:3])
    assert len(index) == 0
    assert "v" not in index


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("vw"), st.sets(st.integers(0, 50)))))
def test_the_bound_holds(changes: list[tuple[bool, str, set[int]]]) -> None:
    """What finds no room counts as not held, and is counted."""
    index = PrefixIndex(20)
    for replica in "vw":
        index.replace(replica, {"device": {CHAIN[0]}})
    for is_new, replica, blocks in changes:
        change = index.add if is_new else index.remove
        change(replica, "device", [CHAIN[i] for i in sorted(blocks)])
        assert len(index) <= 20
        assert len(index) == sum(len(s) for t in index._held.values() for s in t.values())


def test_a_full_index_keeps_what_it_has() -> None:
    """A hot prefix stays; newcomers wait for room."""
    index = index_of(*CHAIN[:10], max_blocks=10)
    index.add("v", "device", CHAIN[10:20])
    assert index.match("v", CHAIN) == Match(10, 0)
    assert index.left_out == 10
    index.replace("w", {"device": set(CHAIN)})
    assert len(index) == 10


@pytest.mark.parametrize("count", [2_000, 20_000, 40_000, 79_000])
def test_its_memory_is_what_the_config_counts_with(count: int) -> None:
    """Unique prompts without end take no more than `index_mib`, nor does what is left of them."""
    index = PrefixIndex(count)
    index.replace("v", {})
    rng = random.Random(0)
    batches = [[rng.getrandbits(64) for _ in range(100)] for _ in range(2 * count // 100)]
    for batch in batches:
        index.add("v", "device", batch)
        assert index.nbytes <= SMALL_BYTES + BYTES_A_BLOCK * len(index)
    assert len(index) == count
    for batch in batches:
        index.remove("v", "device", batch)
        assert index.nbytes <= SMALL_BYTES + BYTES_A_BLOCK * len(index)
    assert len(index) == 0
