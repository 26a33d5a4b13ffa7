"""What a request would cost: more work never costs less, and what is cached never more."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvstore.kv_messages import FetchCosts
from router.cost import DEFAULT_PREFILL, Cost, cost_of, usual_prefill, usually_waiting
from router.types import Candidate, Load, Prefill

BLOCK = 32
counts = st.integers(0, 500)
loads = st.builds(
    Load,
    replica_id=st.just("v"),
    in_flight=counts,
    sent_since=counts,
    last_pick=counts,
    queued_tokens=st.integers(0, 10**6),
    sent_tokens=st.integers(0, 10**6),
)
candidates = st.builds(
    Candidate,
    load=loads,
    device_blocks=counts,
    colder_blocks=counts,
    storage_blocks=st.integers(0, 3),
    coming_blocks=counts,
    prefill=st.none() | st.builds(Prefill, st.floats(0, 1), st.floats(1e-6, 0.1)),
    affinity=st.floats(0, 1),
)
prompts = st.integers(1, 20_000)


def cost(candidate: Candidate, prompt: int) -> Cost:
    return cost_of(candidate, prompt, BLOCK)


@given(candidates, prompts)
def test_a_cost_is_finite_and_the_last_token_is_always_computed(
    candidate: Candidate, prompt: int
) -> None:
    """Even where more blocks are held than the prompt has."""
    found = cost(candidate, prompt)
    assert 1 <= found.prefill_tokens <= prompt
    assert 0 <= found.ttft_s <= found.total_s < float("inf")


@given(candidates, prompts, st.integers(1, 1000))
def test_work_ahead_never_makes_it_cheaper(candidate: Candidate, prompt: int, more: int) -> None:
    """Requests and tokens, reported or sent since."""
    for field in ("in_flight", "sent_since", "queued_tokens", "sent_tokens"):
        busier = replace(
            candidate,
            load=replace(candidate.load, **{field: getattr(candidate.load, field) + more}),
        )
        assert cost(busier, prompt).total_s >= cost(candidate, prompt).total_s


@given(candidates, prompts, st.integers(1, 500))
def test_blocks_never_make_it_dearer(candidate: Candidate, prompt: int, more: int) -> None:
    """On the device, on the way there, or on a colder tier."""
    for field in ("device_blocks", "colder_blocks", "coming_blocks"):
        warmer = replace(candidate, **{field: getattr(candidate, field) + more})
        assert cost(warmer, prompt).total_s <= cost(candidate, prompt).total_s + 1e-9


@given(candidates, prompts, st.integers(0, 5000))
def test_a_longer_prompt_is_never_cheaper(candidate: Candidate, prompt: int, more: int) -> None:
    """All else equal."""
    assert cost(candidate, prompt + more).total_s >= cost(candidate, prompt).total_s - 1e-9


def test_a_slow_fetch_is_not_made() -> None:
    """Where computing is faster than fetching, a colder tier is worth nothing."""
    fast = Candidate(Load("v", 0, 0, 0), colder_blocks=10, prefill=Prefill(0.0, 1e-5))
    slow = replace(fast, prefill=Prefill(0.0, 1e-3))
    assert cost(fast, 1000).prefill_tokens == 1000
    assert cost(slow, 1000).prefill_tokens == 1000 - 10 * BLOCK
    assert cost(slow, 1000).fetch_s > 0


def test_each_tier_is_worth_the_time_it_saves() -> None:
    """Memory near by more than what all nodes share, and that nothing where it is slow."""
    costs = FetchCosts(0.01, 1e-4, 0.02, 5e-4)
    near = Candidate(Load("v", 0, 0, 0), colder_blocks=30, prefill=Prefill(0.0, 1e-3), fetch=costs)
    far = replace(near, storage_blocks=30)
    slow = replace(far, fetch=FetchCosts(0.01, 1e-4, 0.02, 2e-3))
    half = replace(slow, storage_blocks=15)
    totals = [cost(candidate, 1000).ttft_s for candidate in (near, far, half, slow)]
    assert totals == sorted(totals)
    assert cost(near, 1000).fetch_s == 0.01 + 1e-4 * 960
    assert cost(far, 1000).fetch_s == 0.02 + 5e-4 * 960
    assert cost(half, 1000).prefill_tokens == 1000 - 15 * BLOCK
    assert cost(slow, 1000).fetch_s == 0


def test_a_cold_verifier_near_shared_blocks_wins_over_a_busy_warm_one() -> None:
    """By the time that fetching saves; and not where nothing can be fetched."""
    prefill = Prefill(0.0, 0.001)
    warm = Candidate(Load("a", 2, 0, 0, queued_tokens=1500), device_blocks=60, prefill=prefill)
    cold = Candidate(Load("b", 0, 0, 0), prefill=prefill)
    near = replace(
        cold, colder_blocks=60, storage_blocks=60, fetch=FetchCosts(0.02, 1e-4, 0.05, 2e-4)
    )
    assert cost(near, 2000).total_s < cost(warm, 2000).total_s < cost(cold, 2000).total_s


def test_the_example_of_the_docstring_comes_out() -> None:
    """A waits and computes little, B computes all; with a longer queue B is cheaper."""
    prefill = Prefill(0.0, 0.001)
    a = Load("a", 3, 0, 0, queued_tokens=500, waiting=1)
    b = Load("b", 0, 0, 0)
    for load_of_a, expected in (
        (a, 1.26),
        (replace(a, queued_tokens=1500, waiting=3), 2.66),
    ):
        known = [Candidate(load_of_a, device_blocks=50, prefill=prefill), Candidate(b, 0, 0, 0)]
        costs = [
            cost_of(candidate, 2000, BLOCK, prefill, usually_waiting(known)) for candidate in known
        ]
        assert [round(cost.total_s, 2) for cost in costs] == [expected, 2.5]


def test_who_has_not_measured_is_taken_for_the_mean() -> None:
    """Of those that have; nobody: the default."""
    known = [Candidate(Load(n, 0, 0, 0), prefill=Prefill(0.0, s)) for n, s in (("a", 1), ("b", 3))]
    assert usual_prefill([*known, Candidate(Load("c", 0, 0, 0))]) == Prefill(0.0, 2.0)
    assert usual_prefill([]) == DEFAULT_PREFILL
