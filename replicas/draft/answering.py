"""What a draft worker answers: the contexts it holds, the drafters it has, and who still waits.

    answer    an ask -> what is known now; where a draft model is still at it, more will follow
    further   what the model has generated since, for those who wait

Drafters are asked in turn until one is sure. Where none is, the draft model is, and the best of
the others stands in until it has said something.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from kvstore.errors import MalformedMessage
from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.draft.drafters import NO_GUESS, SURE, Drafter, Guess, Question
from replicas.draft.gate import outcome_of
from replicas.draft.running_ahead import Progress, RunningAhead
from replicas.draft.sessions import Note, SessionKey, Sessions
from replicas.draft.tally import Malformed
from replicas.draft.waiting import Waiting
from replicas.messages import (
    MAX_CONTEXT_TOKENS,
    MAX_DRAFT_TOKENS,
    MAX_NEXT_MS,
    MAX_SESSIONS,
    Ask,
    AskBatch,
    Draft,
    DraftBatch,
    Tokens,
    pack_tokens,
    unpack_tokens,
)

logger = logging.getLogger(__name__)

MAX_ANSWER_TOKENS: Final = (MAX_MESSAGE_BYTES - 64 * MAX_SESSIONS) // 4
"""In one answer: with everything else it says, it stays a message that verifiers take."""


class Answering:
    """The state behind a draft service. Not for several threads, but counts may be read.

    Args:
        vocab_size: Tokens; contexts with others are not believed, and none are drafted.
        memory_bytes: For the contexts of sessions.
        ahead: Draft tokens beyond the wanted ones.
        drafters: Asked in turn until one is sure; else the most confident wins.
        model: Asked where no drafter is sure.
        ended: Told the domain and the whole context of each session that is over. Must be quick.
    """

    def __init__(
        self,
        vocab_size: int,
        memory_bytes: int,
        ahead: int,
        drafters: list[Drafter],
        model: RunningAhead | None = None,
        ended: Callable[[bytes, Tokens], None] | None = None,
    ) -> None:
        self.sessions = Sessions(memory_bytes)
        self.malformed = Malformed()
        self.asks = self.unknown = self.drafted_tokens = 0
        self.failed_drafts: dict[str, int] = {}
        self._vocab_size, self._ahead = vocab_size, ahead
        self._drafters = drafters
        self._by_kind = {drafter.kind: drafter for drafter in drafters}
        self._model = model
        self._waiting = Waiting()
        self._ended = ended

    def answer(self, peer: bytes, batch: AskBatch, outdated: set[int]) -> DraftBatch:
        """What is known now of what a verifier asks.

        Args:
            peer: ZeroMQ's identity of its connection.
            batch: What it asks.
            outdated: Sessions about which it has asked again since, so that nobody waits.
        """
        for session in batch.forget:
            self._end(SessionKey(peer, session))
        drafts: list[Draft] = []
        unknown: list[int] = []
        tokens_left = MAX_ANSWER_TOKENS
        for ask in batch.asks:
            self.asks += 1
            key = SessionKey(peer, ask.session)
            try:
                context = self._extend(key, ask)
            except MalformedMessage as error:
                self._forget(key)
                self.malformed.count(error)
                continue
            if context is None:
                self.unknown += 1
                unknown.append(ask.session)
                continue
            note = self.sessions.note(key) or Note(ask.domain)
            self._learn(note, context)
            wanted = 0 if ask.session in outdated else ask.wanted
            most = min(wanted + self._ahead, MAX_DRAFT_TOKENS, tokens_left) if wanted else 0
            draft = self._draft(key, batch.step, note, context, wanted, most)
            tokens_left -= len(draft.tokens) // 4
            drafts.append(draft)
        for key in self.sessions.take_dropped():
            self._forget(key)
        return DraftBatch(batch.step, drafts, unknown, self._waiting.is_open(peer, batch.step))

    def further(self) -> Iterable[tuple[bytes, DraftBatch]]:
        """What the draft model has for those who wait, by verifier and step."""
        assert self._model is not None, "only called where there is one"
        by_step: dict[tuple[bytes, int], list[Draft]] = {}
        for key in self._model.news():
            ask = self._waiting.ask_of(key)
            if ask is None:
                continue
            progress = self._model.known(key)
            most = min(ask.wanted + self._ahead, MAX_ANSWER_TOKENS // MAX_SESSIONS)
            draft = self._of_model(key, ask.length, progress, most)
            by_step.setdefault((key.peer, ask.step), []).append(draft)
            if not draft.next_ms:
                self._waiting.end(key)
        for (peer, step), drafts in by_step.items():
            yield peer, DraftBatch(step, drafts, [], self._waiting.is_open(peer, step))

    def forget_peer(self, peer: bytes) -> None:
        """A verifier is gone."""
        self.sessions.forget_peer(peer)
        self._left(peer)

    def drop_idle(self, now_s: float) -> None:
        """Drops the sessions of verifiers that have been silent for long."""
        for peer in self.sessions.drop_idle(now_s):
            self._left(peer)

    def _left(self, peer: bytes) -> None:
        self._waiting.end_peer(peer)
        if self._model is not None:
            self._model.forget_peer(peer)

    def _forget(self, key: SessionKey) -> None:
        self.sessions.forget(key)
        self._waiting.end(key)
        if self._model is not None:
            self._model.forget(key)

    def _end(self, key: SessionKey) -> None:
        over = self.sessions.end(key)
        self._forget(key)
        if over is not None and self._ended is not None:
            try:
                self._ended(*over)
            except Exception:
                self._failed("ended")

    def _extend(self, key: SessionKey, ask: Ask) -> Tokens | None:
        if ask.base + len(ask.appended) // 4 > MAX_CONTEXT_TOKENS:
            raise MalformedMessage("length", f"a context has more than {MAX_CONTEXT_TOKENS} tokens")
        appended = unpack_tokens(ask.appended, self._vocab_size)
        return self.sessions.extend(key, ask.base, appended, time.monotonic(), ask.domain)

    def _draft(
        self, key: SessionKey, step: int, note: Note, context: Tokens, wanted: int, most: int
    ) -> Draft:
        self._waiting.end(key)
        guess = self._guess(note, context, most)
        if self._model is not None and most > 0 and guess.confidence < SURE:
            progress = self._model.tell(key, context, min(wanted, most), salt_of(key, note.domain))
            if progress.next_s is not None:
                self._waiting.begin(key, step, len(context), wanted)
            if progress.tokens or not len(guess.tokens):
                return self._of_model(key, len(context), progress, most)
            next_ms, token_ms = _expected_ms(progress)
        else:
            next_ms = token_ms = 0
        if len(guess.tokens):
            note.guess, note.length = guess, len(context)
        self.drafted_tokens += len(guess.tokens)
        return Draft(
            key.session,
            len(context),
            pack_tokens(guess.tokens),
            guess.kind,
            guess.confidence,
            next_ms,
            token_ms,
        )

    def _of_model(self, key: SessionKey, length: int, progress: Progress, most: int) -> Draft:
        tokens = np.array(progress.tokens[:most], dtype=np.int32)
        outside = np.flatnonzero(tokens >= self._vocab_size)
        if len(outside):
            tokens = tokens[: outside[0]]
        self.drafted_tokens += len(tokens)
        return Draft(
            key.session,
            length,
            pack_tokens(tokens),
            RunningAhead.kind,
            progress.confidence,
            *_expected_ms(progress),
        )

    def _learn(self, note: Note, context: Tokens) -> None:
        """Tells the drafter what became of its last draft, as soon as the text has gone on."""
        guess: Guess | None = note.guess
        if guess is None or len(context) <= note.length:
            return
        note.guess = None
        outcome = outcome_of(guess.tokens, context[note.length :])
        try:
            self._by_kind[guess.kind].learn(guess, note.domain, outcome, time.monotonic())
        except Exception:
            self._failed(guess.kind)

    def _failed(self, what: str) -> None:
        """Counts an exception of a drafter, and logs its first."""
        if what not in self.failed_drafts:
            logger.exception("drafter=%s draft=failed, told once", what)
        self.failed_drafts[what] = self.failed_drafts.get(what, 0) + 1

    def _guess(self, note: Note, context: Tokens, wanted: int) -> Guess:
        """The first guess that is sure, or else the best; none where nobody has any."""
        if wanted < 1:
            return NO_GUESS
        best = NO_GUESS
        question = Question(context, wanted, note.domain, time.monotonic())
        for drafter in self._drafters:
            try:
                guess = drafter.draft(question)
            except Exception:
                self._failed(drafter.kind)
                continue
            if len(guess.tokens) and guess.confidence > best.confidence:
                best = guess
            if best.confidence >= SURE:
                break
        return replace(best, tokens=best.tokens[:wanted]) if len(best.tokens) > wanted else best


def salt_of(key: SessionKey, domain: bytes) -> str:
    """Whose cached blocks a session's may meet: those of its domain, or its own only."""
    return f"domain {domain.hex()}" if domain else f"session {key.peer.hex()} {key.session}"


def _expected_ms(progress: Progress) -> tuple[int, int]:
    """Until the next token, and between those after it; 0 where none is to come."""
    if progress.next_s is None:
        return 0, 0
    next_ms, token_ms = (round(1e3 * seconds) for seconds in (progress.next_s, progress.token_s))
    return min(max(1, next_ms), MAX_NEXT_MS), min(token_ms, MAX_NEXT_MS)
