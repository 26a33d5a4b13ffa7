"""Whether a source's drafts pay, by what became of them; closed for a while where they don't.

A worker is not told what was accepted. It sees the text go on, and compares: a draft's tokens
up to the first that is wrong are what a verifier would have accepted of it.

    open --few are right--> closed, 5 s --time is over--> probing --enough are right--> open
                              ^                             |
                              +------ twice as long --------+   (up to 2 min)
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from replicas.messages import Tokens

LEAST_RIGHT: Final = 0.15
"""Part of the tokens looked at. Below it, the work of verifying a row more is worth more than the
tokens that come of it."""
FIRST_TRIES: Final = 48
"""Tokens looked at before anything is concluded."""
REMEMBERED_TRIES: Final = 256.0
"""The past weighs as much as so many tokens."""
FIRST_CLOSED_S: Final = 5.0
LONGEST_CLOSED_S: Final = 120.0
MAX_GATES: Final = 4096


@dataclass(frozen=True)
class Outcome:
    """What became of one draft.

    Attributes:
        tried: Its tokens that the text has passed, up to the first wrong one.
        right: Of those, the ones that were right.
    """

    tried: int
    right: int


def outcome_of(draft: Tokens, appended: Tokens) -> Outcome:
    """Compares a draft with what the text went on with."""
    right = 0
    for drafted, came in zip(draft.tolist(), appended[: len(draft)].tolist(), strict=False):
        if drafted != came:
            return Outcome(right + 1, right)
        right += 1
    return Outcome(right, right)


@dataclass(slots=True)
class _State:
    tried: float = 0.0
    right: float = 0.0
    closed_until_s: float = 0.0
    closed_s: float = 0.0


class Gate:
    """One gate a source and domain. Not for several threads."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[str, bytes], _State] = OrderedDict()
        self.closings = 0
        """Times that a gate closed."""

    def is_open(self, source: str, domain: bytes, now_s: float) -> bool:
        """Whether to draft from a source for a domain now."""
        state = self._states.get((source, domain))
        return state is None or now_s >= state.closed_until_s

    def saw(self, source: str, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """Takes in what became of a draft."""
        if not outcome.tried:
            return
        state = self._states.setdefault((source, domain), _State())
        self._states.move_to_end((source, domain))
        if len(self._states) > MAX_GATES:
            self._states.popitem(last=False)
        if now_s < state.closed_until_s:
            return  # a draft of before
        state.tried += outcome.tried
        state.right += outcome.right
        if state.tried > REMEMBERED_TRIES:
            state.right *= REMEMBERED_TRIES / state.tried
            state.tried = REMEMBERED_TRIES
        if state.tried < FIRST_TRIES:
            return
        if state.right >= LEAST_RIGHT * state.tried:
            state.closed_s = 0.0
            return
        state.closed_s = min(max(2 * state.closed_s, FIRST_CLOSED_S), LONGEST_CLOSED_S)
        state.closed_until_s = now_s + state.closed_s
        state.tried = state.right = 0.0  # the probe begins anew
        self.closings += 1

    def closed(self, now_s: float) -> int:
        """Gates that are closed now."""
        return sum(now_s < state.closed_until_s for state in list(self._states.values()))
