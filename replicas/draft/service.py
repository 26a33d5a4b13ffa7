"""A draft worker's socket: takes asks of any number of verifiers, answers with drafts.

One thread does it all, and blocks only where it waits: what is slow here is the drafting, and
answers have to keep the order of what was appended. A draft model has a thread of its own and
wakes this one when it has news. A verifier that sends garbage, reads nothing or dies costs the
others nothing.

    waiting --asks--> take in all that have come --> answer each by what is known --> waiting
    waiting --news of the model--> tell those who wait for it --> waiting

Where several asks about one session have come, only the last is drafted for: nobody waits
for the others any more.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import zmq

from kvstore.errors import MalformedMessage
from replicas.draft.answering import Answering
from replicas.draft.drafters import Drafter
from replicas.draft.listening import listen, tcp_endpoint
from replicas.draft.running_ahead import RunningAhead
from replicas.draft.sessions import SessionKey
from replicas.draft.tally import Busy, ServiceStats
from replicas.errors import NoDraftPort
from replicas.messages import AskBatch, Codec, DraftBatch, Tokens

logger = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Messages taken in before the first is answered."""
WAKE_MS: Final = 200
"""How often the thread looks whether it should stop."""


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
        drafters: Asked in turn until one is sure.
        ended: Told the domain and the whole context of each session that is over. Must be quick.
        model: Asked where no drafter is sure. The service starts and closes it.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        codec: Codec,
        drafters: list[Drafter],
        ended: Callable[[bytes, Tokens], None] | None = None,
        model: RunningAhead | None = None,
    ) -> None:
        self._settings = settings
        self._codec = codec
        self._drafters = drafters
        self._model = model
        self._answering = Answering(
            settings.vocab_size, settings.memory_bytes, settings.ahead, drafters, model, ended
        )
        self._busy = Busy(time.monotonic())
        self._unsent = 0
        self._news = -1
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
        """Of its drafters, in their order; the model's comes last."""
        kinds = [drafter.kind for drafter in self._drafters]
        return kinds if self._model is None else [*kinds, self._model.kind]

    @property
    def vocab_size(self) -> int:
        """Tokens of the target's vocabulary."""
        return self._settings.vocab_size

    @property
    def is_alive(self) -> bool:
        """Whether it answers: started, not closed, and no thread of it died."""
        if self._model is not None and not self._model.is_alive:
            return False
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen, and begin to answer; a model's engine is made in the background.

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
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._endpoint = tcp_endpoint(self._settings.advertised_host, port)
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="draft-service", daemon=True
        )
        self._thread.start()
        if self._model is not None:
            self._model.start(lambda: os.eventfd_write(self._news, 1))

    def close(self) -> None:
        """Stop answering and free the port; returns when the thread has ended."""
        if self._model is not None:
            self._model.close()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._context is not None:
            self._context.term()
            self._context = None
            os.close(self._news)

    def stats(self, now_s: float) -> ServiceStats:
        """What it did so far; from any thread.

        Args:
            now_s: By `time.monotonic`.
        """
        answering = self._answering
        return ServiceStats(
            sessions=len(answering.sessions),
            context_tokens=answering.sessions.context_tokens,
            asks=answering.asks,
            unknown=answering.unknown,
            drafted_tokens=answering.drafted_tokens,
            malformed=answering.malformed.counts(),
            evicted_sessions=answering.sessions.evicted,
            unsent=self._unsent,
            failed_drafts=sum(answering.failed_drafts.copy().values()),
            busy_ratio=self._busy.ratio(now_s),
        )

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._news, zmq.POLLIN)
        try:
            while not self._stopping.is_set():
                ready = dict(poller.poll(WAKE_MS))
                self._busy.begin(time.monotonic())
                if socket in ready:
                    self._answer_all(socket, self._take_in(socket))
                if self._news in ready:
                    os.eventfd_read(self._news)
                    for peer, answer in self._answering.further():
                        self._send(socket, peer, answer)
                self._busy.end(time.monotonic())
                self._answering.drop_idle(time.monotonic())
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
                self._answering.malformed.count(error, version)
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
            self._send(socket, peer, self._answer(peer, batch, outdated))

    def _answer(self, peer: bytes, batch: AskBatch, outdated: set[int]) -> DraftBatch:
        return self._answering.answer(peer, batch, outdated)

    def _send(self, socket: zmq.Socket[bytes], peer: bytes, answer: DraftBatch) -> None:
        try:
            socket.send_multipart([peer, *self._codec.pack(answer)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._unsent += 1
            if error.errno == zmq.EHOSTUNREACH:
                self._answering.forget_peer(peer)
