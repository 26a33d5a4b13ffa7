"""A draft worker's socket: takes asks of any number of verifiers, answers with drafts.

One thread does it all, and blocks only where it waits for asks: what is slow here is the
drafting, and answers have to keep the order of what was appended. A verifier that sends
garbage, reads nothing or dies costs the others nothing.

    waiting --asks--> take in all that have come --> draft, answer each --> waiting

Where several asks about one session have come, only the last is drafted for: nobody waits
for the others any more.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

import zmq

from kvstore.errors import MalformedMessage
from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.draft.drafters import NO_GUESS, SURE, Drafter, Guess, Question
from replicas.draft.gate import outcome_of
from replicas.draft.listening import listen, tcp_endpoint
from replicas.draft.sessions import Note, SessionKey, Sessions
from replicas.draft.tally import Busy, Malformed, ServiceStats
from replicas.errors import NoDraftPort
from replicas.messages import (
    MAX_CONTEXT_TOKENS,
    MAX_DRAFT_TOKENS,
    MAX_SESSIONS,
    Ask,
    AskBatch,
    Codec,
    Draft,
    DraftBatch,
    Tokens,
    pack_tokens,
    unpack_tokens,
)

logger = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Messages taken in before the first is answered."""
WAKE_MS: Final = 200
"""How often the thread looks whether it should stop."""
MAX_ANSWER_TOKENS: Final = (MAX_MESSAGE_BYTES - 64 * MAX_SESSIONS) // 4
"""In one answer: with everything else it says, it stays a message that verifiers take."""


@dataclass(frozen=True)
class ServiceSettings:
    """What a draft service is told.

    Attributes:
        host: Address to listen on, or a name of one.
        advertised_host: Address under which verifiers reach it.
        first_port: Of the ports it may take; it takes the first that is free.
        last_port: Of the ports it may take.
        vocab_size: Tokens; contexts with others are not believed.
        memory_bytes: For the contexts of sessions.
        ahead: Draft tokens beyond the wanted ones.
    """

    host: str
    advertised_host: str
    first_port: int
    last_port: int
    vocab_size: int
    memory_bytes: int
    ahead: int


class DraftService:
    """Answers asks from `start` to `close`.

    Args:
        settings: What it is told.
        codec: Of the cluster's token.
        drafters: Asked in turn until one is sure; else the most confident wins.
        ended: Told the domain and the whole context of each session that is over. Must be quick.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        codec: Codec,
        drafters: list[Drafter],
        ended: Callable[[bytes, Tokens], None] | None = None,
    ) -> None:
        self._settings = settings
        self._codec = codec
        self._drafters = drafters
        self._by_kind = {drafter.kind: drafter for drafter in drafters}
        self._ended = ended
        self._sessions = Sessions(settings.memory_bytes)
        self._malformed = Malformed()
        self._busy = Busy(time.monotonic())
        self._asks = self._unknown = self._drafted_tokens = self._unsent = 0
        self._failed_drafts: dict[str, int] = {}
        self._stopping = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._thread: threading.Thread | None = None
        self._endpoint: str | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """`tcp://host:port`, where verifiers ask; only after `start`."""
        assert self._endpoint is not None, "the service is not started"
        return self._endpoint

    @property
    def kinds(self) -> list[str]:
        """Of its drafters, in their order."""
        return [drafter.kind for drafter in self._drafters]

    @property
    def vocab_size(self) -> int:
        """Tokens of the target's vocabulary."""
        return self._settings.vocab_size

    @property
    def is_alive(self) -> bool:
        """Whether it answers: started, not closed, and its thread didn't die."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen, and begin to answer.

        Raises:
            NoDraftPort: No port of the range is free, or the host is none of this machine.
        """
        assert self._thread is None, "the service is started once"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        try:
            port = listen(
                socket, self._settings.host, self._settings.first_port, self._settings.last_port
            )
        except NoDraftPort:
            context.destroy(linger=0)
            raise
        self._context = context
        self._endpoint = tcp_endpoint(self._settings.advertised_host, port)
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="draft-service", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port; returns when the thread has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._context is not None:
            self._context.term()

    def stats(self, now_s: float) -> ServiceStats:
        """What it did so far; from any thread.

        Args:
            now_s: By `time.monotonic`.
        """
        return ServiceStats(
            sessions=len(self._sessions),
            context_tokens=self._sessions.context_tokens,
            asks=self._asks,
            unknown=self._unknown,
            drafted_tokens=self._drafted_tokens,
            malformed=self._malformed.counts(),
            evicted_sessions=self._sessions.evicted,
            unsent=self._unsent,
            failed_drafts=sum(self._failed_drafts.copy().values()),
            busy_ratio=self._busy.ratio(now_s),
        )

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while not self._stopping.is_set():
                if socket.poll(WAKE_MS):
                    self._busy.begin(time.monotonic())
                    self._answer_all(socket, self._take_in(socket))
                    self._busy.end(time.monotonic())
                self._sessions.drop_idle(time.monotonic())
        except Exception:
            # Ours, not a verifier's: the health check sees it and Serve starts another.
            logger.exception("draft_service=died endpoint=%s", self._endpoint)
        finally:
            socket.close(linger=0)

    def _take_in(self, socket: zmq.Socket[bytes]) -> list[tuple[bytes, AskBatch]]:
        """The asks that have come, oldest first; those that can't be believed are counted."""
        batches: list[tuple[bytes, AskBatch]] = []
        for _ in range(AT_ONCE):
            try:
                peer, *frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                batches.append((peer, self._codec.unpack_ask(frames)))
            except MalformedMessage as error:
                version = frames[0][3] if error.what == "version" else None
                self._malformed.count(error, version)
        return batches

    def _answer_all(self, socket: zmq.Socket[bytes], batches: list[tuple[bytes, AskBatch]]) -> None:
        latest = {
            SessionKey(peer, ask.session): place
            for place, (peer, batch) in enumerate(batches)
            for ask in batch.asks
        }
        for place, (peer, batch) in enumerate(batches):
            outdated = {
                ask.session for ask in batch.asks if latest[SessionKey(peer, ask.session)] != place
            }
            answer = self._answer(peer, batch, outdated)
            try:
                socket.send_multipart([peer, *self._codec.pack(answer)], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    raise
                self._unsent += 1
                if error.errno == zmq.EHOSTUNREACH:
                    self._sessions.forget_peer(peer)

    def _answer(self, peer: bytes, batch: AskBatch, outdated: set[int]) -> DraftBatch:
        for session in batch.forget:
            over = self._sessions.end(SessionKey(peer, session))
            if over is not None and self._ended is not None:
                self._give_away(*over)
        drafts: list[Draft] = []
        unknown: list[int] = []
        tokens_left = MAX_ANSWER_TOKENS
        for ask in batch.asks:
            self._asks += 1
            try:
                context = self._extend(peer, ask)
            except MalformedMessage as error:
                self._sessions.forget(SessionKey(peer, ask.session))
                self._malformed.count(error)
                continue
            if context is None:
                self._unknown += 1
                unknown.append(ask.session)
                continue
            wanted = 0
            if ask.wanted and ask.session not in outdated:
                wanted = min(ask.wanted + self._settings.ahead, MAX_DRAFT_TOKENS, tokens_left)
            note = self._sessions.note(SessionKey(peer, ask.session)) or Note(ask.domain)
            self._learn(note, context)
            guess = self._draft(note, context, wanted)
            tokens_left -= len(guess.tokens)
            self._drafted_tokens += len(guess.tokens)
            packed = pack_tokens(guess.tokens)
            drafts.append(Draft(ask.session, len(context), packed, guess.kind, guess.confidence))
        return DraftBatch(batch.step, drafts, unknown)

    def _extend(self, peer: bytes, ask: Ask) -> Tokens | None:
        if ask.base + len(ask.appended) // 4 > MAX_CONTEXT_TOKENS:
            raise MalformedMessage("length", f"a context has more than {MAX_CONTEXT_TOKENS} tokens")
        appended = unpack_tokens(ask.appended, self._settings.vocab_size)
        key = SessionKey(peer, ask.session)
        return self._sessions.extend(key, ask.base, appended, time.monotonic(), ask.domain)

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

    def _give_away(self, domain: bytes, context: Tokens) -> None:
        """The text of a session that is over, to whoever wants it."""
        assert self._ended is not None, "only called where somebody does"
        try:
            self._ended(domain, context)
        except Exception:
            self._failed("ended")

    def _failed(self, what: str) -> None:
        """Counts an exception of a drafter, and logs its first."""
        if what not in self._failed_drafts:
            logger.exception("drafter=%s draft=failed, told once", what)
        self._failed_drafts[what] = self._failed_drafts.get(what, 0) + 1

    def _draft(self, note: Note, context: Tokens, wanted: int) -> Guess:
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
        if len(best.tokens) > wanted:
            best = replace(best, tokens=best.tokens[:wanted])
        if len(best.tokens):
            note.guess, note.length = best, len(context)
        return best
