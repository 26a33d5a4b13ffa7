"""Who still waits for a draft model: the asks that were not answered in full at once."""

from collections import Counter
from typing import NamedTuple

from replicas.draft.sessions import SessionKey


class WaitingAsk(NamedTuple):
    """What one session waits for.

    Attributes:
        step: The verifier's, of its ask.
        length: Of the session's context, tokens.
        wanted: Tokens.
    """

    step: int
    length: int
    wanted: int


class Waiting:
    """One ask a session: a newer one takes the place of the one before."""

    def __init__(self) -> None:
        self._asks: dict[SessionKey, WaitingAsk] = {}
        self._open: Counter[tuple[bytes, int]] = Counter()

    def __len__(self) -> int:
        return len(self._asks)

    def begin(self, key: SessionKey, step: int, length: int, wanted: int) -> None:
        """A session begins to wait."""
        self.end(key)
        self._asks[key] = WaitingAsk(step, length, wanted)
        self._open[key.peer, step] += 1

    def end(self, key: SessionKey) -> None:
        """It waits no more; nothing happens where it did not."""
        ask = self._asks.pop(key, None)
        if ask is None:
            return
        self._open[key.peer, ask.step] -= 1
        if not self._open[key.peer, ask.step]:
            del self._open[key.peer, ask.step]

    def end_peer(self, peer: bytes) -> None:
        """A verifier is gone."""
        for key in [key for key in self._asks if key.peer == peer]:
            self.end(key)

    def ask_of(self, key: SessionKey) -> WaitingAsk | None:
        """What a session waits for."""
        return self._asks.get(key)

    def is_open(self, peer: bytes, step: int) -> bool:
        """Whether sessions of this ask still wait."""
        return (peer, step) in self._open
