"""The draft model of a worker: an engine in a thread of its own, always ahead of the verifiers.

The service's thread tells it of asks and takes what is there, and never waits for the engine:
both only hold the lock while `lookahead.py` decides. The engine's thread steps as long as
anybody has less than he may want next, and sleeps otherwise.

    service thread   tell, known, news ──┐
                                         ├── lock: Lookahead, Pace
    engine thread    plan, generated ────┘        engine.step() without it
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replicas.draft.generation import DraftEngine
from replicas.draft.lookahead import Lookahead
from replicas.draft.pace import Pace
from replicas.draft.sessions import SessionKey
from replicas.draft.track import Known, LookaheadCounts, LookaheadSettings
from replicas.messages import Tokens

logger = logging.getLogger(__name__)

STUCK_S: Final = 60.0
"""A step that takes so long will not end."""
SWITCH_S: Final = 0.0005
"""How long Python lets the engine's thread run while the service's, which has to answer at once,
waits; 5 ms by default."""


@dataclass(frozen=True)
class Progress:
    """What the model knows of a session.

    Attributes:
        tokens: That may follow its text.
        next_s: When the next is expected, in seconds; None: those that were wanted are here, or
            will not come.
        confidence: Part of the tokens that the model expects to be right, 0-1; 0 where it does
            not say.
        token_s: Between further tokens, in seconds.
    """

    tokens: list[int]
    next_s: float | None
    confidence: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True)
class ModelStats:
    """What a draft model did. Counts run since its start.

    Attributes:
        counts: Of its lookahead.
        sessions: That it remembers.
        places: Requests that its engine runs at once.
        running: Of these, in use.
        step_s: Of a step that only decodes, seconds.
        busy_s: Time of all steps, seconds.
    """

    counts: LookaheadCounts
    sessions: int
    places: int
    running: int
    step_s: float
    busy_s: float


class RunningAhead:
    """Drafts from `start` to `close`.

    Args:
        make_engine: Makes the engine, in the thread that will step it. May take minutes.
        lookahead: Tokens generated beyond the wanted ones.
        fan_out: Branches a session.
        places: Requests that the engine runs at once.
    """

    kind: Final = "model"

    def __init__(
        self, make_engine: Callable[[], DraftEngine], lookahead: int, fan_out: int, places: int
    ) -> None:
        self._make_engine = make_engine
        self._wanted = (lookahead, fan_out, places)
        self._lookahead = Lookahead(LookaheadSettings(*self._wanted, max_model_len=1))
        self._pace = Pace()
        self._lock = threading.Condition()
        self._news: set[SessionKey] = set()
        self._wake: Callable[[], None] = lambda: None
        self._is_ready = threading.Event()
        self._stopping = False
        self._stepping_since_s: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Makes the engine, in the background.

        Args:
            wake: Called by the engine's thread when there are news; must not wait.
        """
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="draft-model", daemon=True)
        self._thread.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether the engine is there within the time; False also where it never will be."""
        until_s = time.monotonic() + timeout_s
        while self.is_alive and time.monotonic() < until_s:
            if self._is_ready.wait(0.1):
                return True
        return False

    def close(self) -> None:
        """Stops, and returns when the engine's thread has ended."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs and its step is not stuck."""
        since_s = self._stepping_since_s
        stuck = since_s is not None and time.monotonic() - since_s > STUCK_S
        return self._thread is not None and self._thread.is_alive() and not stuck

    def tell(self, key: SessionKey, context: Tokens, wanted: int, salt: str) -> Progress:
        """A session's text has gone on, and so many tokens are wanted. Arguments as in
        `Lookahead.told`.
        """
        if not self._is_ready.is_set() or not self.is_alive:
            return Progress([], None)
        with self._lock:
            known = self._lookahead.told(key, context, wanted, salt)
            if self._lookahead.has_work():
                self._lock.notify()
            return self._progress(known)

    def known(self, key: SessionKey) -> Progress:
        """What is known of a session now."""
        with self._lock:
            return self._progress(self._lookahead.known(key))

    def news(self) -> set[SessionKey]:
        """Sessions that were short of what is wanted, and got something since the last call."""
        with self._lock:
            news, self._news = self._news, set()
            return news

    def forget(self, key: SessionKey) -> None:
        """The session is over."""
        with self._lock:
            self._lookahead.forget(key)
            self._lock.notify()

    def forget_peer(self, peer: bytes) -> None:
        """All sessions of a verifier are over."""
        with self._lock:
            self._lookahead.forget_peer(peer)
            self._lock.notify()

    def stats(self) -> ModelStats:
        """What it did so far; from any thread."""
        with self._lock:
            return ModelStats(
                counts=LookaheadCounts(**vars(self._lookahead.counts)),
                sessions=len(self._lookahead),
                places=self._wanted[2],
                running=self._lookahead.running,
                step_s=self._pace.step_s,
                busy_s=self._pace.busy_s,
            )

    def _progress(self, known: Known) -> Progress:
        next_s = None
        if known.more:
            next_s = self._pace.next_s(time.monotonic(), known.runs, known.unread)
        chances = [choice.chance for choice in known.choices]
        is_said = bool(chances) and min(chances) > 0
        confidence = sum(chances) / len(chances) if is_said else 0.0
        return Progress(known.tokens, next_s, confidence, self._pace.step_s)

    def _run(self) -> None:
        try:
            engine = self._make_engine()
        except Exception:
            logger.exception("draft_model=not started")
            return
        try:
            with self._lock:
                settings = LookaheadSettings(*self._wanted, max_model_len=engine.max_model_len)
                self._lookahead = Lookahead(settings)
            sys.setswitchinterval(SWITCH_S)
            self._is_ready.set()
            while self._step(engine):
                pass
        except Exception:
            # The health check sees it and Serve starts another worker.
            logger.exception("draft_model=died")
        finally:
            self._stepping_since_s = None
            engine.close()

    def _step(self, engine: DraftEngine) -> bool:
        """One engine step, as soon as there is anything to do; False where it should stop."""
        with self._lock:
            while not self._lookahead.has_work() and not self._stopping:
                self._lock.wait()
            if self._stopping:
                return False
            plan = self._lookahead.plan()
            runs = self._lookahead.running > 0
            unread = self._lookahead.unread
            started_s = time.monotonic()
            self._pace.begin(started_s)
        self._stepping_since_s = started_s
        engine.change(plan)
        grown = engine.step() if runs else ()
        self._stepping_since_s = None
        with self._lock:
            self._news |= self._lookahead.generated(grown)
            self._pace.end(time.monotonic(), unread, self._lookahead.unread)
            has_news = bool(self._news)
        if has_news:
            self._wake()
        return True
