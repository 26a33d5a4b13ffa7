"""What a verifier's engine had to do and how well, counted for the autoscaler: totals only."""

from dataclasses import dataclass, field
from typing import Any

from configs.request_class import BATCH
from configs.sections.scaling import AutoscalingConfig
from kvstore.verifier_report import BatchCounts
from replicas.verifier.request_log import RequestRecord


@dataclass
class _Tally:
    """Of all requests, or of those that can wait."""

    started: int = 0
    prefilled: int = 0
    prefilled_tokens: int = 0
    prompt_squares: float = 0.0
    ended: int = 0
    output_tokens: int = 0


@dataclass
class WorkCounts:
    """Told of each request's start, first token and end (monotonic clock, seconds).

    Args:
        targets: By which ended requests are on time, each by its class's; None: none is.
    """

    targets: AutoscalingConfig | None = None
    _all: _Tally = field(default_factory=_Tally)
    _batch: _Tally = field(default_factory=_Tally)
    _in_flight: int = 0
    _busy_since_s: float = 0.0
    _busy_s: float = 0.0
    _on_time: int = 0

    def started(self, record: RequestRecord, now_s: float) -> None:
        """A request came to the engine."""
        if not self._in_flight:
            self._busy_since_s = now_s
        self._in_flight += 1
        for tally in self._its(record):
            tally.started += 1

    def prefilled(self, record: RequestRecord) -> None:
        """A request got its first token."""
        computed = max(0, record.prompt_tokens - record.cached_tokens)
        for tally in self._its(record):
            tally.prefilled += 1
            tally.prefilled_tokens += computed
            tally.prompt_squares += float(computed) ** 2

    def ended(self, record: RequestRecord, duration_s: float, now_s: float) -> None:
        """A request left the engine, one way or another."""
        self._in_flight -= 1
        if not self._in_flight:
            self._busy_s += now_s - self._busy_since_s
        for tally in self._its(record):
            tally.ended += 1
            tally.output_tokens += sum(record.output_tokens.values())
        self._on_time += self._is_on_time(record, duration_s)

    def _its(self, record: RequestRecord) -> tuple[_Tally, ...]:
        return (self._all, self._batch) if record.request_class == BATCH else (self._all,)

    def _is_on_time(self, record: RequestRecord, duration_s: float) -> bool:
        if self.targets is None or record.ttft_s is None:
            return False
        ttft_s, tpot_s = self.targets.of_class(record.request_class)
        # Of several choices each goes on after the first token.
        more = max(record.output_tokens.values(), default=0) - 1
        in_time = more <= 0 or duration_s - record.ttft_s <= tpot_s * more
        return record.ttft_s <= ttft_s and in_time

    def told(self, now_s: float) -> dict[str, Any]:
        """The counts, by their names in `VerifierReport`."""
        running_s = now_s - self._busy_since_s if self._in_flight else 0.0
        return {
            "requests_started": self._all.started,
            "prefilled_tokens": self._all.prefilled_tokens,
            "prompt_squares": self._all.prompt_squares,
            "busy_s": self._busy_s + running_s,
            "on_time": self._on_time,
            "batch": BatchCounts(**vars(self._batch)) if self._batch.started else None,
        }
