"""What `paceline status` says of the last scaling decision."""

from cluster.scaling_words import scaling_words
from kvstore.scaling_report import PoolReport, ScalingReport


def test_a_decision_is_told_with_its_reason_and_its_age() -> None:
    """How many, how many still start, why, and from what."""
    decided = ScalingReport(
        at_s=100.0,
        verifiers=PoolReport(2, 2, 4, 4, "from 2 to 4: much is asked"),
        draft_workers=PoolReport(1, 1, 1, 1, "a trial runs"),
        rate=6.0,
        measured_rate=5.0,
        attainment=0.97,
        cold_start_s=42.0,
    )
    verifiers, workers, seen = scaling_words(decided, 103.0)
    assert verifiers == "verifiers: 4 wanted, 2 running: from 2 to 4: much is asked"
    assert workers == "draft workers: 1 wanted: a trial runs"
    assert "5.00 requests/s and plans for 6.00; 97% of recent" in seen
    assert "a start takes 42 s (decided 3 s ago)" in seen


def test_without_scaling_workers_nothing_is_said_of_them() -> None:
    """And too few requests are no attainment."""
    decided = ScalingReport(at_s=1.0, verifiers=PoolReport(1, 1, 1, 1, "nothing is asked"))
    lines = list(scaling_words(decided, 1.0))
    assert len(lines) == 2
    assert "- of recent requests" in lines[1]
