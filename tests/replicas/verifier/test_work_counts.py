"""What an engine had to do and how well, counted for the autoscaler."""

from dataclasses import replace

import pytest

from configs.request_class import BATCH
from configs.sections.scaling import AutoscalingConfig
from kvstore.verifier_report import BatchCounts
from replicas.verifier.request_log import RequestRecord
from replicas.verifier.work_counts import WorkCounts

TARGETS = AutoscalingConfig(
    max_verifiers=2, ttft_s=1.0, tpot_ms=100.0, batch_ttft_s=5.0, batch_tpot_ms=200.0
)


def record(ttft_s: float | None, output: int = 11, prompt: int = 100, cached: int = 0):
    """A request that has run."""
    return RequestRecord("r", "m", 0.0, prompt, cached, {0: output}, ttft_s=ttft_s)


def test_busy_time_is_that_with_any_request_and_counted_once() -> None:
    """Two that overlap are one busy time; what runs now counts, too."""
    counts = WorkCounts()
    counts.started(record(None), 10.0)
    counts.started(record(None), 12.0)
    counts.ended(record(0.5), 3.0, 13.0)
    assert counts.told(14.0)["busy_s"] == pytest.approx(4.0)
    counts.ended(record(0.5), 3.0, 15.0)
    counts.started(record(None), 100.0)
    assert counts.told(101.0)["busy_s"] == pytest.approx(6.0)
    assert counts.told(101.0)["requests_started"] == 3


def test_only_what_is_computed_is_prefilled() -> None:
    """Tokens from a cache cost nothing; squares are those of what is left."""
    counts = WorkCounts()
    counts.prefilled(record(0.1, prompt=100, cached=60))
    counts.prefilled(record(0.1, prompt=10))
    told = counts.told(0.0)
    assert told["prefilled_tokens"] == 50
    assert told["prompt_squares"] == 40**2 + 10**2


@pytest.mark.parametrize(
    ("ttft_s", "duration_s", "output", "on_time"),
    [
        (0.9, 1.9, 11, 1),  # 100 ms a token
        (0.9, 2.0, 11, 0),
        (1.1, 1.2, 11, 0),
        (None, 1.0, 0, 0),  # left before its first token
        (0.9, 9.0, 1, 1),  # there is no token after the first
    ],
)
def test_on_time_is_what_meets_both_targets(ttft_s, duration_s, output, on_time) -> None:
    """The first token and the time per token after it."""
    counts = WorkCounts(TARGETS)
    counts.started(record(None), 0.0)
    counts.ended(record(ttft_s, output), duration_s, duration_s)
    assert counts.told(10.0)["on_time"] == on_time


def test_without_targets_nothing_is_on_time() -> None:
    """Nobody asked."""
    counts = WorkCounts()
    counts.started(record(None), 0.0)
    counts.ended(record(0.1), 0.2, 0.2)
    assert counts.told(1.0)["on_time"] == 0


def test_requests_that_can_wait_have_counts_and_targets_of_their_own() -> None:
    """They are part of all, and on time by what they are held to."""
    counts = WorkCounts(TARGETS)
    patient = replace(record(4.0, output=11, prompt=60, cached=10), request_class=BATCH)
    for each in (patient, record(0.5, output=5)):
        counts.started(each, 0.0)
        counts.prefilled(each)
        assert counts.told(0.0)["on_time"] == 0
    counts.ended(patient, 6.0, 6.0)  # 200 ms a token
    counts.ended(record(0.5, output=5), 0.9, 6.0)
    told = counts.told(6.0)
    assert told["on_time"] == told["requests_started"] == 2
    assert told["batch"] == BatchCounts(
        started=1,
        prefilled=1,
        prefilled_tokens=50,
        prompt_squares=2500.0,
        ended=1,
        output_tokens=11,
    )
    counts.ended(replace(patient, ttft_s=5.1), 6.0, 6.0)
    assert counts.told(6.0)["on_time"] == 2


def test_without_any_that_can_wait_nothing_is_told_of_them() -> None:
    """A report stays small."""
    counts = WorkCounts(TARGETS)
    counts.started(record(None), 0.0)
    assert counts.told(1.0)["batch"] is None
