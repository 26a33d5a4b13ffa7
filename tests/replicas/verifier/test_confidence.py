"""What a source's confidence is worth is learned from what came of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.confidence import HALF_LIFE_STEPS, Confidences

SOURCE = "worker:ngram_index"
RATES = (0.7, 0.7, 0.7, 0.7)
PRICE = 0.3


def learned() -> Confidences:
    """Sure drafts were right, unsure ones wrong, over forty steps."""
    confidences = Confidences()
    for step in range(40):
        confidences.verified(SOURCE, 0.9, 4, 4, step)
        confidences.verified(SOURCE, 0.2, 4, 0, step)
    return confidences


def test_unsure_drafts_are_cut_and_sure_ones_kept() -> None:
    """By what was seen of each; what the source never said counts for nothing."""
    confidences = learned()
    assert len(confidences.worth(RATES, PRICE, SOURCE, 0.9, 40)) == 4
    assert confidences.worth(RATES, PRICE, SOURCE, 0.2, 40) == []
    assert len(confidences.worth(RATES, PRICE, SOURCE, 0.5, 40)) == 3  # 0.7^4 < 0.3 < 0.7^3


def test_of_a_source_that_says_nothing_all_is_kept() -> None:
    """And nothing is learned."""
    confidences = learned()
    confidences.verified(SOURCE, 0.0, 4, 0, 40)
    kept = confidences.worth(RATES, 0.9, SOURCE, 0.0, 41)
    assert kept == pytest.approx([0.7, 0.49, 0.343, 0.2401])


def test_sources_are_apart() -> None:
    """One that lies about itself does not spoil the others."""
    assert len(learned().worth(RATES, PRICE, "worker:model", 0.2, 40)) == 3


def test_what_was_seen_fades() -> None:
    """So that what is cut to nothing is tried again."""
    confidences = learned()
    later = 40 + int(6 * HALF_LIFE_STEPS)
    assert len(confidences.worth(RATES, PRICE, SOURCE, 0.2, later)) >= 1


@given(
    rates=st.lists(st.floats(0, 1), max_size=8),
    price=st.floats(0, 2),
    confidence=st.floats(0, 1),
    seen=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 8), st.integers(0, 8)), max_size=40),
)
def test_whatever_was_seen_a_draft_is_only_ever_cut(
    rates: list[float], price: float, confidence: float, seen: list[tuple[float, int, int]]
) -> None:
    """Chances fall from place to place, and none that is kept is below its price."""
    confidences = Confidences()
    for step, (sure, drafted, accepted) in enumerate(seen):
        confidences.verified(SOURCE, sure, drafted, min(drafted, accepted), step)
    kept = confidences.worth(rates, price, SOURCE, confidence, len(seen))
    assert len(kept) <= len(rates)
    assert kept == sorted(kept, reverse=True)
    assert all(0 <= chance <= 1 and (not confidence or chance >= price) for chance in kept)
