"""Which source drafted what, and how much of it the target accepted, by position."""

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_SOURCES = 16


@dataclass
class SourceAccount:
    """Tokens of one source by their place in the draft, since the start."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Takes in one verified draft of `drafted` tokens, the first `accepted` of them right."""
        missing = drafted - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing
        for position in range(drafted):
            self.drafted[position] += 1
        for position in range(accepted):
            self.accepted[position] += 1


class DraftAccounts:
    """Accounts by source. A draft counts when it was verified, not when it was proposed."""

    def __init__(self) -> None:
        self.by_source: dict[str, SourceAccount] = {}
        self._pending: dict[str, str] = {}

    def proposed(self, request_id: str, source: str) -> None:
        """The next draft of `request_id` comes from `source`."""
        self._pending[request_id] = source

    def verified(self, request_id: str, drafted: int, accepted: int) -> None:
        """The target has looked at `drafted` tokens and accepted the first `accepted`."""
        source = self._pending.get(request_id)
        if not source or drafted < 1:
            return
        if source not in self.by_source and len(self.by_source) >= MAX_SOURCES:
            source = "other"
        self.by_source.setdefault(source, SourceAccount()).add(drafted, accepted)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests are over."""
        for request_id in request_ids:
            self._pending.pop(request_id, None)
