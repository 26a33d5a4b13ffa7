"""Acceptance estimates: what a few drafts teach, by place, by source and by request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.acceptance import (
    LEAST_FOUND,
    MAX_GROUPS,
    PRIOR,
    REQUEST_HALF_LIFE_STEPS,
    Acceptance,
    RequestRecord,
    expected_tokens,
)

K = 4
CLASS = "interactive"


def taught(
    acceptance: Acceptance, record: RequestRecord, accepted: int, times: int, step: int = 0
) -> None:
    for _ in range(times):
        acceptance.verified(record, "worker", K, accepted, step)


def rates(acceptance: Acceptance, record: RequestRecord, step: int = 0) -> list[float]:
    found: list[float] = acceptance.rates([record], step)[0].tolist()
    return found


def test_nothing_is_known_at_first() -> None:
    """Every place of a new request has the prior."""
    acceptance = Acceptance(K)
    assert rates(acceptance, acceptance.start(CLASS, 0)) == [PRIOR] * K


def test_each_place_has_its_own_rate() -> None:
    """Drafts of which two tokens are right: the third place is wrong, the fourth was not tried
    and is taken to be like the third.
    """
    acceptance = Acceptance(K)
    for _ in range(100):
        record = acceptance.start(CLASS, 0)
        acceptance.verified(record, "worker", K, 2, 0)
    first, second, third, fourth = rates(acceptance, acceptance.start(CLASS, 0))
    assert first > 0.9
    assert second > 0.9
    assert third < 0.1
    assert fourth == pytest.approx(third)


def test_a_request_soon_differs_from_the_others() -> None:
    """Among requests whose drafts are right, four wrong drafts tell one that is not."""
    acceptance = Acceptance(K)
    for _ in range(50):
        taught(acceptance, acceptance.start(CLASS, 0), K, 1)
    good, bad = acceptance.start(CLASS, 0), acceptance.start(CLASS, 0)
    taught(acceptance, bad, 0, 4)
    assert rates(acceptance, bad)[0] < 0.45
    assert rates(acceptance, good)[0] > 0.85


def test_old_evidence_about_a_request_fades() -> None:
    """After many steps without a draft it is again what its group is."""
    acceptance = Acceptance(K)
    for _ in range(50):
        taught(acceptance, acceptance.start(CLASS, 0), K, 1)
    bad = acceptance.start(CLASS, 0)
    taught(acceptance, bad, 0, 10)
    later = int(10 * REQUEST_HALF_LIFE_STEPS)
    assert rates(acceptance, bad)[0] < 0.25
    assert rates(acceptance, bad, later)[0] == pytest.approx(
        rates(acceptance, acceptance.start(CLASS, later), later)[0], abs=0.01
    )


def test_a_change_is_learned_within_a_hundred_drafts() -> None:
    """From always right to always wrong and back."""
    acceptance = Acceptance(K)
    for accepted, low, high in ((K, 0.9, 1.0), (0, 0.0, 0.3), (K, 0.7, 1.0)):
        for _ in range(100 if accepted else 160):
            record = acceptance.start(CLASS, 0)
            acceptance.verified(record, "worker", K, accepted, 0)
        assert low <= rates(acceptance, acceptance.start(CLASS, 0))[0] <= high


def test_classes_and_sources_are_apart() -> None:
    """What is learned of one says nothing of another."""
    acceptance = Acceptance(K)
    for _ in range(30):
        taught(acceptance, acceptance.start("batch", 0), 0, 1)
        acceptance.verified(acceptance.start(CLASS, 0), "local", K, K, 0)
    assert rates(acceptance, acceptance.start("batch", 0))[0] < 0.15
    assert rates(acceptance, acceptance.start(CLASS, 0))[0] > 0.85
    assert set(acceptance.by_group()) == {("worker", "batch"), ("local", CLASS)}


def test_sources_without_end_need_no_memory_without_end() -> None:
    """The last place is for all that come after it."""
    acceptance = Acceptance(K)
    for i in range(3 * MAX_GROUPS):
        acceptance.verified(acceptance.start(CLASS, 0), f"source {i}", K, K, 0)
    assert len(rates(acceptance, acceptance.start(CLASS, 0))) == K


def test_how_often_a_draft_is_found_is_learned_too() -> None:
    """Never quite never, and a request that finds some soon is told from its class."""
    acceptance = Acceptance(K)
    for _ in range(500):
        acceptance.asked(acceptance.start(CLASS, 0), False, 0)
    record = acceptance.start(CLASS, 0)
    assert acceptance.found([record], 0)[0] == pytest.approx(LEAST_FOUND)
    for _ in range(4):
        acceptance.asked(record, True, 0)
    assert acceptance.found([record], 0)[0] > 0.5


@given(st.lists(st.tuples(st.integers(1, K), st.integers(0, K), st.integers(0, 50)), max_size=80))
def test_a_rate_is_a_probability_and_right_drafts_never_lower_it(
    drafts: list[tuple[int, int, int]],
) -> None:
    """Whatever was verified before."""
    acceptance, step = Acceptance(K), 0
    record = acceptance.start(CLASS, step)
    for drafted, accepted, pause in drafts:
        step += pause
        acceptance.verified(record, "worker", drafted, min(drafted, accepted), step)
    before = rates(acceptance, record, step)
    assert all(0 <= rate <= 1 for rate in before)
    acceptance.verified(record, "worker", K, K, step)
    after = rates(acceptance, record, step)
    assert all(a >= b - 1e-9 for a, b in zip(after, before, strict=True))


def test_expected_tokens_are_those_of_the_notes() -> None:
    """One token is the target's own; each further needs all before it accepted."""
    assert expected_tokens([]) == 1
    assert expected_tokens([0.8] * 4) == pytest.approx(3.36, abs=0.005)
    assert expected_tokens([0.9, 0.5, 0.0, 1.0]) == pytest.approx(1 + 0.9 + 0.45)
