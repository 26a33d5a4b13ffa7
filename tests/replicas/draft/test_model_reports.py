"""What a worker tells of its draft model."""

import msgspec
import pytest

from kvstore.draft_report import DraftModelReport
from replicas.draft.model_telemetry import ModelReporter
from replicas.draft.pace import Pace
from replicas.draft.running_ahead import ModelStats
from replicas.draft.track import LookaheadCounts


def test_a_report_covers_the_time_since_the_last() -> None:
    """Counts run on; the busy part is of the time between two reports, and reads back as it was."""
    reporter = ModelReporter("/models/" + "x" * 300, now_s=10.0)
    counts = LookaheadCounts(asked=5, ready=3, branched=1, restarted=2, generated=40, branches=4)
    first = reporter.report(ModelStats(counts, 2, 8, 1, 0.05, busy_s=1.0), now_s=12.0)
    assert (first.asked, first.ready, first.busy_ratio, first.places) == (5, 3, 0.5, 8)
    again = reporter.report(ModelStats(counts, 2, 8, 1, 0.05, busy_s=1.5), now_s=14.0)
    assert again.busy_ratio == 0.25
    packed = msgspec.msgpack.encode(again)
    assert msgspec.msgpack.decode(packed, type=DraftModelReport) == again


def test_the_next_token_is_expected_by_the_pace_of_steps() -> None:
    """A session in the running step gets it at its end, another one a step later, and one whose
    prompt is long later still.
    """
    pace = Pace()
    for start_s in (0.0, 1.0):
        pace.begin(start_s)
        pace.end(start_s + 0.1, unread=0, still_unread=0)
    pace.begin(2.0)
    assert pace.next_s(2.0, runs=True, unread=0) == pytest.approx(0.1)
    assert pace.next_s(2.06, runs=True, unread=0) == pytest.approx(0.04)
    assert pace.next_s(2.06, runs=False, unread=0) == pytest.approx(0.14)
    pace.end(2.1, unread=1000, still_unread=500)
    for start_s in (3.0, 4.0):
        pace.begin(start_s)
        pace.end(start_s + 2.1, unread=500, still_unread=0)
    assert pace.step_s == pytest.approx(0.1), "steps that read prompts tell nothing of others"
    assert pace.next_s(9.0, runs=False, unread=1000) > pace.next_s(9.0, runs=False, unread=0) + 0.2
    assert pace.busy_s > 4.0
