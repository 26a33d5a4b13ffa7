"""What a request would cost: more work never costs less, and what is cached never more."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.cost import DEFAULT_PREFILL, Cost, cost_of, usual_prefill
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


def test_the_example_of_the_docstring_comes_out() -> None:
    """A waits and computes little, B computes all; with a longer queue B is cheaper."""
    prefill = Prefill(0.0, 0.001)
    a = Candidate(Load("a", 3, 0, 0, queued_tokens=500), device_blocks=50, prefill=prefill)
    b = Candidate(Load("b", 0, 0, 0), prefill=prefill)
    assert round(cost(a, 2000).total_s, 2) == 1.06
    assert round(cost(b, 2000).total_s, 2) == 2.5
    busier = replace(a, load=replace(a.load, queued_tokens=2000))
    assert round(cost(busier, 2000).total_s, 2) == 2.56


def test_who_has_not_measured_is_taken_for_the_mean() -> None:
    """Of those that have; nobody: the default."""
    known = [Candidate(Load(n, 0, 0, 0), prefill=Prefill(0.0, s)) for n, s in (("a", 1), ("b", 3))]
    assert usual_prefill([*known, Candidate(Load("c", 0, 0, 0))]) == Prefill(0.0, 2.0)
    assert usual_prefill([]) == DEFAULT_PREFILL
