"""Totals of what a verifier's scheduler does with shared KV blocks; they travel to telemetry."""

from typing import Any, Final, Literal

import msgspec

from kvstore.kv_reports import CostLine, SharingReport
from replicas.verifier.fading_line import Line
from replicas.verifier.fetch_gate import LookUp, Rates

SHARING: Final = "paceline_sharing"
"""Key of these totals in the connector's statistics."""

Outcome = Literal["fetched", "missed", "computed", "gave_up", "failed"]


class KvState:
    """Counts since the start.

    Attributes:
        asked: Requests that were long enough to be looked up.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._decided: dict[str, int] = {}
        self._outcomes: dict[str, int] = {}
        self._tokens = 0
        self._load_s = 0.0

    def decided(self, decision: LookUp) -> None:
        """A request is looked up, or not."""
        self.asked += decision.reason != "short"
        self._decided[decision.reason] = self._decided.get(decision.reason, 0) + 1

    def outcome(self, outcome: Outcome) -> None:
        """What came of a look-up."""
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1

    def loaded(self, tokens: int, seconds: float) -> None:
        """So many tokens came into the engine."""
        self._tokens += tokens
        self._load_s += seconds

    def told(self, rates: Rates, tiers: dict[str, Line], is_healthy: bool) -> dict[str, Any]:
        """A `SharingReport`, as plain data that vLLM carries between its processes."""
        report = SharingReport(
            is_healthy=is_healthy,
            decided=dict(self._decided),
            outcomes=dict(self._outcomes),
            tokens=self._tokens,
            load_s=self._load_s,
            compute=_line(rates.compute),
            load=_line(rates.load),
            tiers={kind: CostLine(line.base_s, line.s_per_token) for kind, line in tiers.items()},
        )
        plain: dict[str, Any] = msgspec.to_builtins(report)
        return plain


def _line(line: Line | None) -> CostLine | None:
    return CostLine(line.base_s, line.s_per_token) if line else None
