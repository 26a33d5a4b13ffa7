"""Prometheus metrics of split drafting, from the states that the proposing rank reports.

Listed with their units in docs/metrics.md.
"""

from ray.serve.metrics import Gauge

from kvstore.total_counter import TotalCounter
from replicas.verifier.drafting_state import DraftingState

BREAKER_LEVELS = {"closed": 0, "half_open": 1, "open": 2}
REFUSED = 3


class DraftingMetrics:
    """The instruments of one verifier."""

    def __init__(self) -> None:
        self._drafted = TotalCounter(
            "paceline_draft_tokens_total",
            "Draft tokens verified, by source and place in the draft.",
            *("source", "position"),
        )
        self._accepted = TotalCounter(
            "paceline_draft_tokens_accepted_total",
            "Draft tokens accepted, by source and place in the draft.",
            *("source", "position"),
        )
        self._asks = TotalCounter("paceline_draft_asks_total", "Messages sent to draft workers.")
        self._answers = TotalCounter(
            "paceline_draft_answers_total", "Answers of draft workers, in time or late.", "when"
        )
        self._misses = TotalCounter(
            "paceline_draft_deadline_misses_total",
            "Waits that ended without the drafts that were waited for.",
        )
        self._violations = TotalCounter(
            "paceline_draft_violations_total",
            "Answers of draft workers that could not be believed.",
            "what",
        )
        self._wait_s = TotalCounter(
            "paceline_draft_wait_seconds_total", "Time steps waited for drafts."
        )
        self._failures = TotalCounter(
            "paceline_draft_failures_total",
            "Steps without drafts because the proposer failed.",
        )
        self._steps = TotalCounter("paceline_engine_steps_total", "Engine steps.")
        self._step_s = TotalCounter(
            "paceline_engine_step_seconds_total", "Where engine steps spend their time.", "part"
        )
        self._breaker = Gauge(
            "paceline_draft_breaker_level",
            description="0 closed, 1 half-open, 2 open, 3 refused.",
            tag_keys=("worker",),
        )
        self._workers = Gauge("paceline_draft_workers", description="Draft workers in use.")
        self._lengths = TotalCounter(
            "paceline_draft_length_rows_total",
            "Sequences of all steps, by the draft length chosen for them.",
            "length",
        )
        self._governed = TotalCounter(
            "paceline_governed_tokens_total",
            "Tokens of decoding steps: as the governor expected them, and as they came.",
            "which",
        )
        self._probes = TotalCounter(
            "paceline_draft_probes_total", "Drafts that were made only to learn."
        )
        self._pressure = Gauge("paceline_draft_pressure_level", description="0-5.")
        self._step_error = Gauge(
            "paceline_step_model_error_ratio",
            description="Usual error of a step's predicted time, 0-1 of that time.",
        )

    def saw(self, state: DraftingState) -> None:
        """Takes in the newest state; Ray exports a gauge only while it is set."""
        for source, counts in state.sources.items():
            for position, count in enumerate(counts.drafted):
                self._drafted.reach(count, source, str(position))
            for position, count in enumerate(counts.accepted):
                self._accepted.reach(count, source, str(position))
        self._asks.reach(state.asks)
        self._answers.reach(state.answers - state.late_answers, "in_time")
        self._answers.reach(state.late_answers, "late")
        self._misses.reach(state.deadline_misses)
        for what, count in state.violations.items():
            self._violations.reach(count, what)
        self._wait_s.reach(state.wait_s)
        self._failures.reach(state.failures)
        self._steps.reach(state.steps)
        for part, seconds in state.step_s.items():
            self._step_s.reach(seconds, part)
        for worker, breaker in state.workers.items():
            self._breaker.set(BREAKER_LEVELS.get(breaker, REFUSED), {"worker": worker})
        if (governor := state.governor) is not None:
            for length, count in enumerate(governor.lengths):
                self._lengths.reach(count, str(length))
            self._governed.reach(governor.expected_tokens, "expected")
            self._governed.reach(governor.real_tokens, "real")
            self._probes.reach(governor.probes)
            self._pressure.set(governor.pressure)
            self._step_error.set(governor.step.error)
        self._workers.set(sum(breaker == "closed" for breaker in state.workers.values()))
