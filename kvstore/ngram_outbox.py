"""Own texts on their way to the other workers, in batches of one domain, within a bound."""

from collections import deque
from typing import Final

from kvstore.ngram_records import ENTRY_TEXTS, ENTRY_TOKENS, FORMAT, Text, TextBatch, Tokens, pack

OUTBOX_TOKENS: Final = 1 << 20
"""Of texts that Redis has not taken yet; the oldest go first."""
OVERLAP_TOKENS: Final = 32
"""By which the parts of a long text overlap, so that no context is cut."""


class Outbox:
    """Batches in the order in which they are to be sent. Not for several threads.

    Args:
        origin: The worker.
        fingerprint: Of its tokenizer.

    Attributes:
        dropped: Texts given up because the outbox was full.
        tokens: In closed batches.
    """

    def __init__(self, origin: str, fingerprint: str) -> None:
        self.dropped = 0
        self.tokens = 0
        self._origin, self._fingerprint = origin, fingerprint
        self._number = 0
        self._open: dict[bytes, list[Text]] = {}
        self._batches: deque[TextBatch] = deque()

    @property
    def first(self) -> TextBatch | None:
        """The batch to be sent next; None where there is none."""
        return self._batches[0] if self._batches else None

    def put(self, domain: bytes, tokens: Tokens, born_s: float) -> None:
        """Takes in a text, a long one in parts; `close_batches` lets it go."""
        for start in range(0, len(tokens), ENTRY_TOKENS - OVERLAP_TOKENS):
            part = tokens[start : start + ENTRY_TOKENS]
            if start and len(part) <= OVERLAP_TOKENS:
                break  # the part before holds all of it
            texts = self._open.get(domain, [])
            if texts and (len(texts) >= ENTRY_TEXTS or _tokens(texts) + len(part) > ENTRY_TOKENS):
                self._close(domain)
            self._open.setdefault(domain, []).append(Text(born_s, pack(part)))

    def close_batches(self) -> None:
        """Everything taken in is ready to be sent."""
        for domain in list(self._open):
            self._close(domain)

    def take(self) -> TextBatch:
        """Removes the first batch, which there must be."""
        batch = self._batches.popleft()
        self.tokens -= _tokens(batch.texts)
        return batch

    def forget(self, domain: bytes, until_s: float) -> None:
        """Removes batches of a domain with texts that were finished by then."""
        batches, self._batches, self.tokens = self._batches, deque(), 0
        for batch in batches:
            if batch.domain != domain or batch.texts[0].born_s > until_s:
                self._batches.append(batch)
                self.tokens += _tokens(batch.texts)

    def _close(self, domain: bytes) -> None:
        texts = self._open.pop(domain)
        self._number += 1
        self._batches.append(
            TextBatch(FORMAT, self._fingerprint, self._origin, self._number, domain, texts)
        )
        self.tokens += _tokens(texts)
        while self.tokens > OUTBOX_TOKENS:
            self.dropped += len(self.take().texts)


def _tokens(texts: list[Text]) -> int:
    return sum(len(text.tokens) // 4 for text in texts)
