"""What the pool of draft workers counts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PoolStats:
    """What happened since the pool was made.

    Attributes:
        messages: Asks sent, one a worker and step.
        asks: Sessions in them.
        left_over: Sessions whose tokens did not all fit in a message and went on later.
        bytes_sent: Payloads and headers, bytes.
        answers: Valid answers, late ones among them.
        late_answers: Answers that came after a wait for them had ended.
        deadline_misses: Waits that ended without a worker's answer, one a worker and step.
        silences: Times a worker had answered nothing for 2 s.
        unsent: Asks that a worker's full queue did not take.
        unknown: Sessions whose whole context a worker asked for.
        moved: Sessions that went to another worker than in their step before.
        waits: Steps that waited for answers.
        wait_s: Time of these waits, seconds.
        violations: Answers that could not be read or believed, by the check that failed: the
            words of `MalformedMessage`, `step`, `session`, `base`, and `socket` for an error
            of the socket itself.
    """

    messages: int
    asks: int
    left_over: int
    bytes_sent: int
    answers: int
    late_answers: int
    deadline_misses: int
    silences: int
    unsent: int
    unknown: int
    moved: int
    waits: int
    wait_s: float
    violations: Mapping[str, int]


class Tally:
    """Counts for one `PoolStats`; the pool and all its links write to the same one."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        """By the attribute's name."""
        self.violations: Counter[str] = Counter()
        self.wait_s = 0.0

    def snapshot(self) -> PoolStats:
        """The counts as they are now."""
        count = self.count
        return PoolStats(
            messages=count["messages"],
            asks=count["asks"],
            left_over=count["left_over"],
            bytes_sent=count["bytes_sent"],
            answers=count["answers"],
            late_answers=count["late_answers"],
            deadline_misses=count["deadline_misses"],
            silences=count["silences"],
            unsent=count["unsent"],
            unknown=count["unknown"],
            moved=count["moved"],
            waits=count["waits"],
            wait_s=self.wait_s,
            violations=MappingProxyType(dict(self.violations)),
        )
