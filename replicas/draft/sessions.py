"""What a draft worker remembers: the contexts of the sessions of all verifiers.

A context is a hint. It may be evicted at any time, and whoever asks about a session that
is not here is told to send it whole. Memory is bounded: the sessions that were not asked
about for the longest go first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from replicas.messages import Tokens

IDLE_S: Final = 60.0
"""The sessions of a verifier that was silent for so long are dropped."""
SESSION_BYTES: Final = 512
"""What a session costs besides its tokens: key, arrays and places in tables, about."""
SPARE_TOKENS: Final = 64
"""Room that a new context gets beyond its first tokens."""


class SessionKey(NamedTuple):
    """One session of one verifier.

    Attributes:
        peer: ZeroMQ's identity of the verifier's connection.
        session: The verifier's number for it.
    """

    peer: bytes
    session: int


@dataclass(slots=True)
class Note:
    """What else is known of a session.

    Attributes:
        domain: Its sharing domain; empty where nothing of it may be shared.
        length: Tokens of the context that `guess` follows.
        guess: The last draft made for it, the service's own business.
    """

    domain: bytes
    length: int = 0
    guess: Any = None


class Sessions:
    """Contexts by session, within a bound of memory.

    Args:
        max_bytes: Most that all contexts may take, with the room they keep to grow.

    Attributes:
        evicted: Sessions dropped so far for want of memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self.evicted = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self._tokens = 0
        self._dropped: list[SessionKey] = []
        self._contexts: OrderedDict[SessionKey, _Context] = OrderedDict()
        self._heard_at_s: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    @property
    def context_tokens(self) -> int:
        """Tokens of all contexts."""
        return self._tokens

    @property
    def held_bytes(self) -> int:
        """Memory of all contexts, with the room they keep to grow; at most `max_bytes`."""
        return self._bytes

    def extend(
        self, key: SessionKey, base: int, appended: Tokens, now_s: float, domain: bytes = b""
    ) -> Tokens | None:
        """The context of a session, with what was appended.

        Args:
            key: Which session.
            base: Tokens that the verifier believes to be here; 0 starts anew.
            appended: [tokens] int32 that follow them.
            now_s: Any clock that never goes back, seconds.
            domain: Its sharing domain; only told where `base` is 0.

        Returns:
            [base + appended] int32, read-only and valid for as long as it is held; or None
            where the session, or its context at this length, is not here. A context larger
            than the whole memory is returned, but not kept.
        """
        self._heard_at_s[key.peer] = now_s
        if base == 0:
            self.forget(key)
            context = _Context(appended, Note(domain))
        else:
            known = self._contexts.get(key)
            if known is None or known.length != base:
                self.forget(key)
                return None
            context = known
            self._remove(key)
            context.append(appended)
        self._contexts[key] = context
        self._bytes += context.held_bytes
        self._tokens += context.length
        while self._bytes > self._max_bytes:
            oldest = next(iter(self._contexts))
            self._remove(oldest)
            self._dropped.append(oldest)
            self.evicted += 1
        return context.view()

    def take_dropped(self) -> list[SessionKey]:
        """The sessions that were dropped for want of memory since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def note(self, key: SessionKey) -> Note | None:
        """What else is known of a session; None where it is not here."""
        context = self._contexts.get(key)
        return context.note if context is not None else None

    def end(self, key: SessionKey) -> tuple[bytes, Tokens] | None:
        """Forget a session that is over.

        Returns:
            Its domain and context, which nobody writes to any more; None where it is not here.
        """
        context = self._contexts.get(key)
        if context is None:
            return None
        self._remove(key)
        return context.note.domain, context.view()

    def forget(self, key: SessionKey) -> None:
        """Drop a session that is over; nothing happens if it is not here."""
        if key in self._contexts:
            self._remove(key)

    def forget_peer(self, peer: bytes) -> None:
        """Drop all sessions of one verifier."""
        self._heard_at_s.pop(peer, None)
        for key in [key for key in self._contexts if key.peer == peer]:
            self._remove(key)

    def drop_idle(self, now_s: float) -> list[bytes]:
        """Drop the sessions of verifiers that were silent for `IDLE_S`; says which."""
        silent = [peer for peer, at_s in self._heard_at_s.items() if now_s - at_s >= IDLE_S]
        for peer in silent:
            self.forget_peer(peer)
        return silent

    def _remove(self, key: SessionKey) -> None:
        context = self._contexts.pop(key)
        self._bytes -= context.held_bytes
        self._tokens -= context.length


class _Context:
    """An array that grows in amortised constant time."""

    __slots__ = ("_array", "length", "note")

    def __init__(self, tokens: Tokens, note: Note) -> None:
        self.note = note
        self.length = len(tokens)
        self._array: Tokens = np.empty(self.length + SPARE_TOKENS, dtype=np.int32)
        self._array[: self.length] = tokens

    @property
    def held_bytes(self) -> int:
        return SESSION_BYTES + self._array.nbytes

    def append(self, tokens: Tokens) -> None:
        length = self.length + len(tokens)
        if length > len(self._array):
            grown: Tokens = np.empty(max(length, 2 * len(self._array)), dtype=np.int32)
            grown[: self.length] = self._array[: self.length]
            self._array = grown
        self._array[self.length : length] = tokens
        self.length = length

    def view(self) -> Tokens:
        view = self._array[: self.length]
        view.flags.writeable = False
        return view
