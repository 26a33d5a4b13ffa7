"""The verifier's line to one draft worker: its socket, its breaker and its ledger.

After anything doubtful (a violation, a breaker that opens) it starts over on a new socket,
which the worker takes for a new verifier: the ledger is empty and all contexts go whole.
Which session goes to which worker, and how long to wait, is the pool's (`draft_pool.py`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import zmq

from kvstore.errors import MalformedMessage
from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.messages import PROTOCOL, SPOKEN, Codec
from replicas.verifier.breaker import Breaker
from replicas.verifier.continuations import Continuation
from replicas.verifier.draft_ledger import DraftLedger, Row
from replicas.verifier.draft_stats import Tally
from replicas.verifier.placement import Load

QUEUED_ASKS: Final = 16
"""A worker that reads none of so many is not asked more."""
READ_AT_ONCE: Final = 64
"""Answers read from one worker before the others have their turn."""
SILENCE_S: Final = 2.0
"""A worker that answers nothing for so long is missed, though nobody waited."""
OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.SNDHWM: QUEUED_ASKS,
    zmq.RCVHWM: READ_AT_ONCE,
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
    zmq.CONNECT_TIMEOUT: 2000,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.IPV6: 1,
}

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerAddress:
    """One live draft worker, as the registry names it.

    Attributes:
        worker_id: Its name.
        endpoint: What ZeroMQ connects to.
        protocols: Versions of `replicas.messages` that it speaks.
        tokenizer_fingerprint: Of the tokenizer whose ids it drafts.
        kinds: Draft kinds of the config that it has.
        distance: From this verifier, as `placement.distance` says.
        load: What it had to do when it last told; no part of who it is.
    """

    worker_id: str
    endpoint: str
    protocols: tuple[int, ...]
    tokenizer_fingerprint: str
    kinds: tuple[str, ...]
    distance: int = 0
    load: Load = field(default=Load(0), compare=False)


class DraftLink:
    """One worker. No method raises, none blocks.

    Args:
        sockets: Where its socket is made.
        address: The worker, which speaks a version of `SPOKEN`.
        codec: Signs asks and checks answers.
        vocab_size: Tokens of drafts are below.
        tally: Where it counts.

    Attributes:
        socket: None before `open`, after `close`, and while the endpoint is none.
    """

    def __init__(
        self,
        sockets: zmq.Context[zmq.Socket[bytes]],
        address: WorkerAddress,
        codec: Codec,
        vocab_size: int,
        tally: Tally,
    ) -> None:
        self.address = address
        self.breaker = Breaker()
        self.socket: zmq.Socket[bytes] | None = None
        self._sockets = sockets
        self._codec = codec
        self._vocab_size = vocab_size
        self._tally = tally
        self._version = max((v for v in address.protocols if v in SPOKEN), default=PROTOCOL)
        self._ledger = DraftLedger(vocab_size, address.kinds)
        self._last_asked = -1
        self._silent_since_s: float | None = None

    def open(self, now_s: float) -> None:
        """Connects, in the background. An endpoint that is none counts as a violation."""
        socket: zmq.Socket[bytes] | None = None
        try:
            socket = self._sockets.socket(zmq.DEALER)
            for option, value in OPTIONS.items():
                socket.setsockopt(option, value)
            socket.connect(self.address.endpoint)
        except zmq.ZMQError as error:
            if socket is not None:
                socket.close(0)
            self._tally.violations["socket"] += 1
            self.breaker.violated(now_s)
            self._log_open(f"cannot connect to {self.address.endpoint}: {error}")
        else:
            self.socket = socket

    def close(self) -> None:
        """Drops the line and what is queued on it."""
        if self.socket is not None:
            self.socket.close(0)
            self.socket = None
        self._ledger = DraftLedger(self._vocab_size, self.address.kinds)
        self._silent_since_s = None

    def may_be_asked(self, now_s: float, probing: bool) -> bool:
        """Whether to ask this worker now.

        Args:
            now_s: By the pool's clock.
            probing: Whether this ask could be the probe of an open breaker. Then True makes it so.
        """
        if self.breaker.state == "closed":
            return True
        return probing and self.breaker.may_ask(now_s)

    @property
    def has_news(self) -> bool:
        """Whether sessions are over that a healthy worker was told of."""
        return self._ledger.has_news and self.breaker.state == "closed"

    def owes(self, step: int) -> bool:
        """Whether the answer to this step's ask is still to come."""
        return self._ledger.owes(step)

    def forget(self, session: int) -> None:
        """The session is over; the next ask says so."""
        self._ledger.forget(session)

    def ask(self, step: int, rows: Mapping[int, Row], now_s: float) -> None:
        """Sends the step's ask.

        Args:
            step: Larger than any before.
            rows: By session; what does not fit in one message goes on in a later step.
            now_s: By the pool's clock.
        """
        if self.socket is None:
            self.open(now_s)
            if self.socket is None:
                return
        batch, left_over = self._ledger.news(step, rows, now_s)
        if not batch.asks and not batch.forget:
            return
        frames = self._codec.pack(batch, self._version)
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self._tally.count["unsent"] += 1
            self._missed("its queue is full", now_s)
            return
        except zmq.ZMQError as error:
            self._violated("socket", str(error), now_s)
            return
        self._ledger.sent(batch)
        if batch.asks:
            self._last_asked = step
            if self._silent_since_s is None:
                self._silent_since_s = now_s
        count = self._tally.count
        count["messages"] += 1
        count["asks"] += len(batch.asks)
        count["left_over"] += left_over
        count["bytes_sent"] += len(frames[0]) + len(frames[1])

    def take_in(self, now_s: float) -> list[tuple[int, Continuation]]:
        """What the answers that are there say, by session. One that cannot be read or believed
        ends the reading, opens the breaker, and nothing of it counts.
        """
        said: list[tuple[int, Continuation]] = []
        for _ in range(READ_AT_ONCE):
            if self.socket is None:
                break
            try:
                events = self.socket.getsockopt(zmq.EVENTS)
                if not int(events) & zmq.POLLIN:  # cheaper than to find out by zmq.Again
                    break
                frames = self.socket.recv_multipart(zmq.DONTWAIT)
                answer = self._codec.unpack_drafts(frames)
                entries = self._ledger.believed(answer)
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                self._violated("socket", str(error), now_s)
                break
            except MalformedMessage as error:
                self._violated(error.what, error.reason, now_s)
                break
            said += entries
            in_time, unknown = self._ledger.settled(answer, now_s)
            self._silent_since_s = now_s if answer.step < self._last_asked else None
            self._tally.count["answers"] += 1
            self._tally.count["unknown"] += unknown
            if in_time:
                self.breaker.answered(now_s)
            else:
                self._tally.count["late_answers"] += 1
        return said

    def miss(self, step: int, now_s: float) -> None:
        """The wait for this step's answer has ended without all of it. A worker that has begun
        to answer is well, and its model is slow: that is not held against it.
        """
        has_begun = self._ledger.gave_up(step)
        self._tally.count["deadline_misses"] += 1
        if not has_begun:
            self._missed("no answer by the deadline", now_s)

    def check_silence(self, now_s: float) -> None:
        """Counts a miss when the worker owes answers and has given none for `SILENCE_S`."""
        since_s = self._silent_since_s
        if since_s is not None and now_s - since_s > SILENCE_S:
            self._silent_since_s = now_s
            self._tally.count["silences"] += 1
            self._missed("no answer at all", now_s)

    def _missed(self, reason: str, now_s: float) -> None:
        self.breaker.missed(now_s)
        if self.breaker.state == "open":
            self._start_over(reason, now_s)

    def _violated(self, word: str, reason: str, now_s: float) -> None:
        self._tally.violations[word] += 1
        self.breaker.violated(now_s)
        self._start_over(f"its answer is not believed: {reason}", now_s)

    def _start_over(self, reason: str, now_s: float) -> None:
        self._log_open(reason)
        self.close()
        self.open(now_s)

    def _log_open(self, reason: str) -> None:
        _LOG.warning(
            "draft worker is not asked for a while worker=%s opened=%d reason=%s",
            self.address.worker_id,
            self.breaker.opened,
            reason,
        )
