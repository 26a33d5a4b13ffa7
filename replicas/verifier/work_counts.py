"""What a verifier's engine had to do and how well, counted for the autoscaler: totals only."""

from typing import Any

from configs.schema import AutoscalingConfig
from replicas.verifier.request_log import RequestRecord


class WorkCounts:
    """Told of each request's start, first token and end (monotonic clock, seconds).

    Args:
        targets: By which ended requests are on time; None: none is.
    """

    def __init__(self, targets: AutoscalingConfig | None = None) -> None:
        self._targets = targets
        self._in_flight = 0
        self._busy_since_s = 0.0
        self._busy_s = self._prompt_squares = 0.0
        self._started = self._prefilled_tokens = self._on_time = 0

    def started(self, now_s: float) -> None:
        """A request came to the engine."""
        if not self._in_flight:
            self._busy_since_s = now_s
        self._in_flight += 1
        self._started += 1

    def prefilled(self, record: RequestRecord) -> None:
        """A request got its first token."""
        computed = max(0, record.prompt_tokens - record.cached_tokens)
        self._prefilled_tokens += computed
        self._prompt_squares += float(computed) ** 2

    def ended(self, record: RequestRecord, duration_s: float, now_s: float) -> None:
        """A request left the engine, one way or another."""
        self._in_flight -= 1
        if not self._in_flight:
            self._busy_s += now_s - self._busy_since_s
        targets, ttft_s = self._targets, record.ttft_s
        if targets is None or ttft_s is None or ttft_s > targets.ttft_s:
            return
        # Of several choices each goes on after the first token.
        more = max(record.output_tokens.values(), default=0) - 1
        self._on_time += more <= 0 or (duration_s - ttft_s) * 1000 <= targets.tpot_ms * more

    def told(self, now_s: float) -> dict[str, Any]:
        """The counts, by their names in `VerifierReport`."""
        running_s = now_s - self._busy_since_s if self._in_flight else 0.0
        return {
            "requests_started": self._started,
            "prefilled_tokens": self._prefilled_tokens,
            "prompt_squares": self._prompt_squares,
            "busy_s": self._busy_s + running_s,
            "on_time": self._on_time,
        }
