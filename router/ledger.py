"""What one router sent where, until the verifiers' own reports take over.

On the direct path a router is told neither when a request starts nor when it
ends, so it counts its own picks and forgets each one as soon as the verifier
has reported after it. Which blocks a verifier will soon hold because of a pick is
remembered for longer: until its prefill is over it tells nobody.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from router.types import Load

FORGET_AFTER_S = 60.0
"""A verifier that has not reported for so long is not held to old picks."""
COMING_FOR_S = 15.0
"""How long a verifier is expected to come to hold the blocks of a pick."""
MAX_COMING = 4096
"""Prompts of one verifier whose blocks are expected."""


@dataclass
class _Picks:
    """Of one verifier: (when, tokens to compute), oldest first, and the sum of the tokens."""

    picks: deque[tuple[float, int]] = field(default_factory=deque)
    tokens: int = 0
    last_pick: int = 0
    coming: dict[int, float] = field(default_factory=dict)


class PickLedger:
    """Picks by verifier. Bounded by the picks of FORGET_AFTER_S, and MAX_COMING blocks."""

    def __init__(self) -> None:
        self._of: dict[str, _Picks] = {}
        self._count = 0

    def picked(
        self, replica_id: str, now_s: float, tokens: int = 0, chain: Sequence[int] = ()
    ) -> None:
        """Notes that a request goes to `replica_id` now.

        Args:
            replica_id: Serve's id of the replica.
            now_s: Wall clock, seconds.
            tokens: Of its prompt, to be computed there.
            chain: Hashes of its prompt's blocks.
        """
        self._count += 1
        mine = self._of.setdefault(replica_id, _Picks())
        mine.last_pick = self._count
        mine.picks.append((now_s, tokens))
        mine.tokens += tokens
        self.expect(replica_id, now_s, chain)

    def expect(self, replica_id: str, at_s: float, chain: Sequence[int]) -> None:
        """Notes that a pick of `at_s` brings these blocks to `replica_id`."""
        if (mine := self._of.get(replica_id)) is None:
            return
        for mark in marks(len(chain)):
            mine.coming.pop(chain[mark - 1], None)
            mine.coming[chain[mark - 1]] = at_s
        while len(mine.coming) > MAX_COMING:
            del mine.coming[next(iter(mine.coming))]

    def load(
        self,
        replica_id: str,
        in_flight: int,
        reported_at_s: float,
        now_s: float,
        queued_tokens: int = 0,
        waiting: int = 0,
    ) -> Load:
        """The verifier's load as of now.

        Args:
            replica_id: Serve's id of the replica.
            in_flight: Requests it reported.
            reported_at_s: When it did (its wall clock, seconds); picks before are forgotten.
            now_s: Now, wall clock, seconds.
            queued_tokens: Prompt tokens it reported as still to compute.
            waiting: Requests without a first token, as it reported.
        """
        mine = self._of.get(replica_id) or _Picks()
        known_until_s = max(reported_at_s, now_s - FORGET_AFTER_S)
        while mine.picks and mine.picks[0][0] <= known_until_s:
            mine.tokens -= mine.picks.popleft()[1]
        return Load(
            replica_id,
            in_flight,
            len(mine.picks),
            mine.last_pick,
            queued_tokens,
            mine.tokens,
            waiting,
        )

    def coming_blocks(self, replica_id: str, chain: Sequence[int], now_s: float) -> int:
        """Leading blocks of a prompt that earlier picks bring to `replica_id`, at least.

        Only some lengths are remembered of each pick (`marks`), so it may be fewer than is true,
        never more.
        """
        mine = self._of.get(replica_id)
        if mine is None:
            return 0
        for mark in reversed(marks(len(chain))):
            at_s = mine.coming.get(chain[mark - 1])
            if at_s is not None and now_s - at_s <= COMING_FOR_S:
                return mark
        return 0

    def expects(self, block: int, now_s: float) -> bool:
        """Whether a pick brings a block to any verifier: the first of a prompt, or a later mark."""
        return any(
            now_s - mine.coming.get(block, -math.inf) <= COMING_FOR_S for mine in self._of.values()
        )

    def keep_only(self, replica_ids: Iterable[str]) -> None:
        """Forgets every verifier that is not in `replica_ids`."""
        alive = set(replica_ids)
        for gone in [known for known in self._of if known not in alive]:
            del self._of[gone]


@lru_cache(maxsize=4096)
def marks(blocks: int) -> tuple[int, ...]:
    """Lengths at which a prompt of so many blocks is remembered: every one up to 8, then four
    between each power of two and the next, and its own.

    Two prompts that share a beginning so share a mark of at least four fifths of it.
    """
    lengths = list(range(1, min(8, blocks) + 1))
    step = 2
    while lengths and lengths[-1] + step <= blocks:
        lengths.append(lengths[-1] + step)
        if lengths[-1] & (lengths[-1] - 1) == 0:
            step = lengths[-1] // 4
    if lengths and lengths[-1] != blocks:
        lengths.append(blocks)
    return tuple(lengths)
