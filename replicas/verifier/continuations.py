"""What is known to follow a context, and how much of it is left to use.

A worker's answer says: the first `base` tokens of this session continue with `tokens`.
It stays of use while the text goes that way, also in steps that come after the one it
was asked in:

    base                             the context has grown by as many tokens as agree
     |                                with the answer, so the rest is a draft
    [c c c c c]  a b c d e f
    [c c c c c   a b c]  d e f
"""

from dataclasses import dataclass

import numpy as np

from replicas.messages import Tokens

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
    """

    base: int
    tokens: Tokens
    source: str
    confidence: float = 0.0

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
        answered_base: Longest context that an answer followed, be it with no tokens.
    """

    __slots__ = ("_best", "answered_base")

    def __init__(self) -> None:
        self.answered_base = -1
        self._best: Continuation | None = None

    def add(self, continuation: Continuation) -> None:
        """Takes in one answer. The longest context counts, of equal ones the latest answer. One
        without tokens takes nothing away: what was known before may still hold.
        """
        self.answered_base = max(self.answered_base, continuation.base)
        best = self._best
        if len(continuation.tokens) and (best is None or continuation.base >= best.base):
            self._best = continuation

    def shrunk_to(self, length: int) -> None:
        """The context has `length` tokens: an answer that followed more was about another."""
        if self.answered_base > length:
            self.answered_base = -1
            self._best = None

    def draft(self, context: Tokens, wanted: int) -> SourcedDraft | None:
        """At most `wanted` tokens that may follow `context`, if any are known."""
        if self._best is None or wanted < 1:
            return None
        best, left = self._best, self._best.left(context)
        return SourcedDraft(left[:wanted], best.source, best.confidence) if len(left) else None

    def is_enough(self, context: Tokens, wanted: int) -> bool:
        """Whether waiting would bring nothing: `wanted` tokens are known, or the answer for just
        this context is there.
        """
        if self.answered_base == len(context):
            return True
        return self._best is not None and len(self._best.left(context)) >= wanted
