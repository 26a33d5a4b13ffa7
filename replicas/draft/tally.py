"""What a draft service counts while others read it: refused messages, and busy time."""

import logging
from dataclasses import dataclass
from typing import Final

from kvstore.errors import MalformedMessage

logger = logging.getLogger(__name__)

MAX_VERSIONS: Final = 6
"""Foreign versions told apart; a header is not signed, so that anybody can invent more."""
MAX_WORDS: Final = 16


@dataclass(frozen=True)
class ServiceStats:
    """What a draft service did. Counts run since its start.

    Attributes:
        sessions: Whose contexts it holds now.
        context_tokens: Tokens of those contexts.
        asks: What was asked, counted by session.
        unknown: Of those, sessions whose whole context had to be asked for.
        drafted_tokens: Sent, or meant to be.
        malformed: Messages dropped, or sessions of them, by the check that failed.
        evicted_sessions: Sessions dropped for want of memory.
        unsent: Answers dropped because the verifier was gone, or read none of the last.
        failed_drafts: Drafts that ended in an exception.
        busy_ratio: Part of the time since the last stats in which it worked, 0-1.
    """

    sessions: int
    context_tokens: int
    asks: int
    unknown: int
    drafted_tokens: int
    malformed: dict[str, int]
    evicted_sessions: int
    unsent: int
    failed_drafts: int
    busy_ratio: float


class Malformed:
    """Counts malformed messages by the check that failed, and logs the first of each word.

    There are at most `MAX_WORDS` words: the checks of `MalformedMessage`, `version N` for
    the first `MAX_VERSIONS` foreign versions, and `other` for what is left.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, error: MalformedMessage, version: int | None = None) -> None:
        """One more.

        Args:
            error: What was wrong.
            version: The foreign version, where that was it.
        """
        word = error.what if version is None else f"version {version}"
        if word not in self._counts:
            versions = sum(known.startswith("version ") for known in self._counts)
            too_many = version is not None and versions >= MAX_VERSIONS
            if too_many or len(self._counts) >= MAX_WORDS - 1:
                word = "other"
        if word not in self._counts:
            logger.warning("draft_message=malformed what=%r reason=%s, told once", word, error)
        self._counts[word] = self._counts.get(word, 0) + 1

    def counts(self) -> dict[str, int]:
        """Messages by word; a copy, from any thread."""
        return self._counts.copy()


class Busy:
    """Measures which part of its time a thread works; read by another.

    Args:
        now_s: By the clock that every call uses, seconds.
    """

    def __init__(self, now_s: float) -> None:
        self._asked_at_s = now_s
        self._asked_busy_s = 0.0
        self._busy_s = 0.0
        self._since_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Work begins."""
        self._since_s = now_s

    def end(self, now_s: float) -> None:
        """Work ends."""
        if self._since_s is not None:
            self._busy_s += now_s - self._since_s
        self._since_s = None

    def ratio(self, now_s: float) -> float:
        """Part of the time since the last call in which it worked, 0-1."""
        since_s = self._since_s
        busy_s = self._busy_s + (now_s - since_s if since_s is not None else 0.0)
        elapsed_s = now_s - self._asked_at_s
        ratio = (busy_s - self._asked_busy_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._asked_at_s, self._asked_busy_s = now_s, busy_s
        return min(max(ratio, 0.0), 1.0)
