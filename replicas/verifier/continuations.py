"""What is known to follow a context, and how much of it is left to use.

A worker's answer says: the first `base` tokens of this session continue with `tokens`.
It stays of use while the text goes that way, also in steps that come after the one it
was asked in:

    base                             the context has grown by as many tokens as agree
     |                                with the answer, so the rest is a draft
    [c c c c c]  a b c d e f
    [c c c c c   a b c]  d e f

A draft model says what it has, and when it expects to have more; until then, what it said may
be less than was wanted, or only stand in.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from replicas.messages import Tokens
from replicas.verifier.patience import Outlook

MODEL: Final = "worker:model"
"""The source whose tokens come one after the other."""
NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SourcedDraft:
    """Draft tokens, where they come from, and what the worker thinks of them (0-1)."""

    tokens: Tokens
    source: str
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """The first `base` tokens of a session continue with `tokens`.

    Attributes:
        base: Tokens of the context that are followed.
        tokens: [n] int32, possibly none.
        source: Where they come from.
        confidence: Part of them that the worker expected to be right, 0-1; 0: it said nothing.
        next_s: When more was expected, seconds after it came; 0: that is all.
        token_s: Between further tokens, seconds.
    """

    base: int
    tokens: Tokens
    source: str
    confidence: float = 0.0
    next_s: float = 0.0
    token_s: float = 0.0

    def left(self, context: Tokens) -> Tokens:
        """The tokens that may follow `context`; none when it is shorter than `base`, when all
        are used up, or when it went another way.
        """
        used = len(context) - self.base
        if not 0 <= used < len(self.tokens):
            return NOTHING
        # Lists: for a few tokens several times as fast as comparing arrays.
        if used and self.tokens[:used].tolist() != context[self.base :].tolist():
            return NOTHING
        return self.tokens[used:]


class Known:
    """What answers have said about one session.

    Attributes:
        answered_base: Longest context that was answered in full, be it with no tokens.
    """

    __slots__ = ("_best", "_open_base", "_open_until_s", "_token_s", "answered_base")

    def __init__(self) -> None:
        self.answered_base = -1
        self._best: Continuation | None = None
        self._open_base = -1
        self._open_until_s = self._token_s = 0.0

    def add(self, continuation: Continuation, now_s: float) -> None:
        """Takes in one answer. The longest context counts, of equal ones the latest answer. One
        without tokens takes nothing away: what was known before may still hold.
        """
        base = continuation.base
        if continuation.next_s:
            if base >= self._open_base:
                self._open_base, self._open_until_s = base, now_s + continuation.next_s
                self._token_s = continuation.token_s
        else:
            self.answered_base = max(self.answered_base, base)
        best = self._best
        if len(continuation.tokens) and (best is None or base >= best.base):
            self._best = continuation

    def shrunk_to(self, length: int) -> None:
        """The context has `length` tokens: an answer that followed more was about another."""
        if max(self.answered_base, self._open_base) > length:
            self.answered_base = self._open_base = -1
            self._best = None

    def draft(self, context: Tokens, wanted: int) -> SourcedDraft | None:
        """At most `wanted` tokens that may follow `context`, if any are known."""
        if self._best is None or wanted < 1:
            return None
        best, left = self._best, self._best.left(context)
        return SourcedDraft(left[:wanted], best.source, best.confidence) if len(left) else None

    def is_enough(self, context: Tokens, wanted: int, until_s: float) -> bool:
        """Whether waiting would bring nothing: `wanted` tokens are known, the answer for just
        this context is there, or what is still to come of it is not expected in time.

        Args:
            context: [tokens] int32.
            wanted: Tokens.
            until_s: When waiting ends, by the clock of `add`.
        """
        length = len(context)
        if self.answered_base == length:
            return True
        if self._open_base == length and self._open_until_s > until_s:
            return True
        best = self._best
        if best is None or (best.next_s and best.base == length and self._open_base == length):
            return False
        return len(best.left(context)) >= wanted

    def outlook(self, context: Tokens, wanted: int, now_s: float) -> Outlook | None:
        """What is there and what is to come; None while its worker has said nothing of that.

        Args:
            context: [tokens] int32.
            wanted: Tokens.
            now_s: By the clock of `add`.
        """
        length, best = len(context), self._best
        have = len(best.left(context)) if best is not None else 0
        if self.answered_base == length:
            return Outlook(have)
        if self._open_base != length:
            return Outlook(have) if have >= wanted else None
        if best is not None and best.base == length and best.source != MODEL:
            have = 0  # it only stands in
        # What is late by so much may well be so late again.
        return Outlook(have, abs(self._open_until_s - now_s), self._token_s)
