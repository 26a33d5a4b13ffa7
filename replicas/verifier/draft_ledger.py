"""What one draft worker has been told, and so what to tell it next and what to believe of it.

No socket and no clock: `DraftLink` carries out what is decided here.

    news       rows of a step -> asks, with the tokens that the worker has not been sent
    sent       these asks went out
    believed   an answer -> its continuations, or MalformedMessage
    settled    this answer counts: sessions that it does not know go whole the next time
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvstore.errors import MalformedMessage
from replicas.messages import (
    MAX_SESSIONS,
    Ask,
    AskBatch,
    DraftBatch,
    Tokens,
    pack_tokens,
    unpack_tokens,
)
from replicas.verifier.continuations import Continuation

STEP_TOKENS: Final = 1 << 18
"""In one message: 1 MiB, which takes about 1 ms to sign. What does not fit goes a step later."""
REMEMBERED_ASKS: Final = 1024
"""Unanswered ones; the answer to an older ask is not read."""
REMEMBERED_FORGOTTEN: Final = 16384
"""Ended sessions whose answers may still be on their way."""
HOLD_S: Final = 1.0
"""A worker that has no room for a session, or forgets it twice in this time, is not sent its
whole context again for so long."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one sequence needs in one step.

    Attributes:
        context: [tokens] int32, prompt and answer so far; read, not kept.
        wanted: Draft tokens wanted. 0: its worker is only kept up to date.
        domain: Its sharing domain; empty where nothing of it may be shared.
    """

    context: Tokens
    wanted: int
    domain: bytes = b""


@dataclass(slots=True)
class _Told:
    """What the worker has been sent of one session."""

    length: int = 0
    longest: int = 0
    whole_at_step: int = -1
    unknown_at_s: float = -math.inf
    held_until_s: float = 0.0


@dataclass(slots=True)
class _Asked:
    """What became of one step's ask so far."""

    is_late: bool = False
    is_begun: bool = False


class DraftLedger:
    """The books on one worker, from one connection's first ask on.

    Args:
        vocab_size: Tokens of drafts are below.
        kinds: The worker's own draft kinds; a source that is none of them is `worker:other`, so
            that it cannot make up names for our metrics.
    """

    def __init__(self, vocab_size: int, kinds: tuple[str, ...]) -> None:
        self._vocab_size = vocab_size
        self._sources = {kind: f"worker:{kind}" for kind in kinds}
        self._told: dict[int, _Told] = {}
        self._to_forget: list[int] = []
        self._forgotten: dict[int, None] = {}
        self._unanswered: dict[int, _Asked] = {}  # by step
        self._unread_below = 0

    @property
    def has_news(self) -> bool:
        """Whether sessions are over that the worker was told of."""
        return bool(self._to_forget)

    def owes(self, step: int) -> bool:
        """Whether the answer to this step's ask, or a part of it, is still to come."""
        return step in self._unanswered

    def gave_up(self, step: int) -> bool:
        """The wait for this step's answer has ended; what is to come will be late.

        Returns:
            Whether a part of it has come.
        """
        asked = self._unanswered.setdefault(step, _Asked())
        asked.is_late = True
        return asked.is_begun

    def forget(self, session: int) -> None:
        """The session is over: the next ask says so, and answers about it count for nothing."""
        if self._told.pop(session, None) is None:
            return
        self._to_forget.append(session)
        self._forgotten[session] = None
        if len(self._forgotten) > REMEMBERED_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def news(self, step: int, rows: Mapping[int, Row], now_s: float) -> tuple[AskBatch, int]:
        """What to send in this step.

        Where it is too much for one message, rows with little news go first, so that none
        waits behind another's long prompt. The first part of a long one goes with 0 wanted.

        Returns:
            The ask, and how many rows are not, or not wholly, in it.
        """
        news: list[tuple[int, int, Row]] = []
        total = 0
        for session, row in rows.items():
            told = self._told.get(session)
            base = 0
            if told is not None:
                if told.held_until_s > now_s:
                    continue
                if told.length <= len(row.context):
                    base = told.length
            new = len(row.context) - base
            if new or (row.wanted and base):
                news.append((new, session, row))
                total += new
        left_over = max(0, len(news) - MAX_SESSIONS)
        if total > STEP_TOKENS or left_over:
            news.sort(key=lambda entry: entry[0])
        asks: list[Ask] = []
        room = STEP_TOKENS
        for new, session, row in news[:MAX_SESSIONS]:
            taken = min(new, room)
            left_over += taken < new
            if new and not taken:
                continue
            room -= taken
            base = len(row.context) - new
            appended = pack_tokens(row.context[base : base + taken])
            wanted = row.wanted if taken == new else 0
            asks.append(Ask(session, base, appended, wanted, b"" if base else row.domain))
        return AskBatch(step, asks, self._to_forget[:MAX_SESSIONS]), left_over

    def sent(self, batch: AskBatch) -> None:
        """The ask is on its way."""
        for ask in batch.asks:
            told = self._told.setdefault(ask.session, _Told())
            told.length = ask.base + len(ask.appended) // 4
            told.longest = max(told.longest, told.length)
            if ask.base == 0:
                told.whole_at_step = batch.step
        del self._to_forget[: len(batch.forget)]
        self._unanswered[batch.step] = _Asked()
        if len(self._unanswered) > REMEMBERED_ASKS:
            oldest = next(iter(self._unanswered))
            del self._unanswered[oldest]
            self._unread_below = oldest + 1

    def believed(self, answer: DraftBatch) -> list[tuple[int, Continuation]]:
        """What the answer says, by session; nothing for sessions that are over.

        Raises:
            MalformedMessage: Its step, a session, a base or tokens cannot be true.
        """
        if answer.step < self._unread_below:
            return []
        if answer.step not in self._unanswered:
            raise MalformedMessage("step", f"it answers step {answer.step}, which waits for none")
        entries: list[tuple[int, Continuation]] = []
        for draft in answer.drafts:
            tokens = unpack_tokens(draft.tokens, self._vocab_size)
            told = self._told_of(draft.session)
            if told is None:
                continue
            if draft.base > told.longest:
                raise MalformedMessage(
                    "base", f"it follows {draft.base} tokens, and was sent {told.longest}"
                )
            source = self._sources.get(draft.source, "worker:other")
            expected_s = draft.next_ms / 1e3, draft.token_ms / 1e3
            continuation = Continuation(draft.base, tokens, source, draft.confidence, *expected_s)
            entries.append((draft.session, continuation))
        for session in answer.unknown:
            self._told_of(session)
        return entries

    def settled(self, answer: DraftBatch, now_s: float) -> tuple[bool, int]:
        """Closes the books on the step of an answer that is believed, unless more will come.

        Returns:
            Whether it was in time, and how many sessions have to be sent whole again.
        """
        asked = self._unanswered.get(answer.step)
        late = asked is None or asked.is_late
        if asked is not None:
            asked.is_begun = True
            if not answer.more:
                del self._unanswered[answer.step]
        unknown = 0
        for session in answer.unknown:
            told = self._told.get(session)
            # An older ask was not understood either; the whole context is on its way already.
            if told is None or answer.step < told.whole_at_step:
                continue
            unknown += 1
            told.length = 0
            if answer.step == told.whole_at_step or now_s - told.unknown_at_s < HOLD_S:
                told.held_until_s = now_s + HOLD_S
            told.unknown_at_s = now_s
        return not late, unknown

    def _told_of(self, session: int) -> _Told | None:
        """None for a session that is over.

        Raises:
            MalformedMessage: The worker was never asked about it.
        """
        told = self._told.get(session)
        if told is None and session not in self._forgotten:
            raise MalformedMessage("session", f"it was never asked about session {session}")
        return told
