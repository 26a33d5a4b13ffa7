"""What a router remembers of its own picks."""

from hypothesis import given
from hypothesis import strategies as st

from router.ledger import COMING_FOR_S, FORGET_AFTER_S, MAX_COMING, PickLedger


def test_picks_count_until_the_verifier_reports_after_them() -> None:
    """A report at 10 s has seen the pick at 9 s, and not the one at 11 s."""
    ledger = PickLedger()
    ledger.picked("a", now_s=9.0)
    ledger.picked("a", now_s=11.0)
    assert ledger.load("a", in_flight=1, reported_at_s=8.0, now_s=12.0).sent_since == 2
    assert ledger.load("a", in_flight=1, reported_at_s=10.0, now_s=12.0).sent_since == 1
    assert ledger.load("a", in_flight=1, reported_at_s=11.5, now_s=12.0).sent_since == 0


def test_a_silent_verifier_is_not_held_to_old_picks() -> None:
    """Without any report, picks are forgotten after a while, so memory is bounded."""
    ledger = PickLedger()
    for second in range(10):
        ledger.picked("a", now_s=float(second))
    later = ledger.load("a", in_flight=0, reported_at_s=0.0, now_s=FORGET_AFTER_S + 5.5)
    assert later.sent_since == 4


def test_a_burst_between_two_reports_is_spread() -> None:
    """Sixteen picks with stale reports go to both verifiers, eight each."""
    from router.policy import least_loaded

    ledger = PickLedger()
    for number in range(16):
        known = [ledger.load(r, 0, reported_at_s=1.0, now_s=2.0) for r in ("a", "b")]
        ledger.picked(least_loaded(known).replica_ids[0], now_s=2.0 + number / 1000)
    sent = [ledger.load(r, 0, reported_at_s=1.0, now_s=2.1).sent_since for r in ("a", "b")]
    assert sent == [8, 8]


def test_removed_verifiers_leave_nothing_behind() -> None:
    """A replica id that is gone is forgotten; one that comes back starts new."""
    ledger = PickLedger()
    ledger.picked("a", now_s=1.0)
    ledger.keep_only(["b"])
    assert ledger.load("a", in_flight=0, reported_at_s=0.0, now_s=1.1) == ledger.load(
        "a", in_flight=0, reported_at_s=0.0, now_s=1.1
    )
    assert ledger.load("a", in_flight=0, reported_at_s=0.0, now_s=1.1).last_pick == 0


def test_tokens_of_picks_count_until_the_verifier_reports() -> None:
    """As the picks themselves."""
    ledger = PickLedger()
    ledger.picked("a", 10.0, tokens=100)
    ledger.picked("a", 11.0, tokens=50)
    assert ledger.load("a", 0, 9.0, 12.0).sent_tokens == 150
    assert ledger.load("a", 1, 10.5, 12.0).sent_tokens == 50
    assert ledger.load("a", 1, 13.0, 13.0).sent_tokens == 0


@given(st.integers(0, 600), st.integers(0, 600))
def test_a_pick_brings_the_blocks_it_shares(shared: int, more: int) -> None:
    """Never more than are shared, and at least three quarters of them."""
    ledger = PickLedger()
    first = list(range(shared + more))
    other = first[:shared] + [-n for n in range(1, 50)]
    ledger.picked("a", 10.0, chain=first)
    coming = ledger.coming_blocks("a", other, 11.0)
    assert 0.75 * shared - 1 <= coming <= shared
    assert ledger.coming_blocks("b", other, 11.0) == 0
    assert ledger.coming_blocks("a", other, 10.0 + COMING_FOR_S + 1) == 0


def test_what_is_coming_is_bounded() -> None:
    """Unique prompts for ever."""
    ledger = PickLedger()
    for number in range(2000):
        ledger.picked("a", 10.0, chain=range(1000 * number, 1000 * number + 100))
    assert len(ledger._of["a"].coming) <= MAX_COMING
    ledger.keep_only([])
    assert not ledger._of
