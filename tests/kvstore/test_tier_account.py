"""A tier that fails is left alone, and comes back by itself."""

import logging

import pytest

from kvstore.tier_account import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    TELL_FULL_EVERY_S,
    TierAccount,
)


def test_a_failed_tier_is_left_alone_longer_each_time() -> None:
    """It is looked at once at the end of each pause, and pauses have a bound."""
    account, now_s = TierAccount("redis"), 0.0
    assert not account.is_left_alone
    for _ in range(8):
        account.failed("gone", now_s)
        assert account.is_left_alone
        assert not account.is_due(now_s + 0.9 * FIRST_PAUSE_S)
        now_s += LONGEST_PAUSE_S
        assert account.is_due(now_s)
        assert not account.is_due(now_s), "only one looks"
    account.answered()
    assert not account.is_left_alone
    assert not account.is_due(now_s + LONGEST_PAUSE_S)


def test_one_line_tells_that_it_is_gone_and_one_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many asks fail in between."""
    account = TierAccount("redis")
    with caplog.at_level(logging.WARNING):
        for now_s in range(50):
            account.failed("refused", float(now_s))
        for _ in range(50):
            account.answered()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["kv tier=redis state=left_alone reason=refused", "kv tier=redis state=back"]


def test_a_full_tier_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Every value that finds no room is counted, and it is not left alone."""
    account = TierAccount("disk")
    with caplog.at_level(logging.WARNING):
        for now_s in range(int(2 * TELL_FULL_EVERY_S)):
            account.dropped(float(now_s))
    assert len(caplog.records) == 2
    assert account.counts == {"dropped": 2 * TELL_FULL_EVERY_S}
    assert not account.is_left_alone


def test_counts_and_rates_are_told() -> None:
    """What became of objects, and how fast they come."""
    account = TierAccount("disk")
    account.stored(10)
    account.loaded(1000)
    account.took(1000, 0.5)
    account.missed()
    account.refused()
    account.dropped(now_s=0.0)
    account.looked_up(0.25)
    told = account.status()
    assert told["counts"] == {"stored": 1, "loaded": 1, "missed": 1, "refused": 1, "dropped": 1}
    assert (told["bytes_loaded"], told["bytes_stored"]) == (1000, 10)
    assert (told["bytes_per_s"], told["lookup_s"]) == (2000.0, 0.25)
    assert told["is_healthy"]
    account.failed("gone", now_s=1.0)
    assert not account.status()["is_healthy"]
