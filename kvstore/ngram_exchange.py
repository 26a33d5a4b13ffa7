"""Texts that one draft worker has seen finished, told to all the others over a Redis stream.

One thread does it, and it alone writes the index:

    publish --> outbox --+--> our index
                         +--> batches --XADD--> stream --XREAD--> the indices of the others

A new worker reads the stream from its beginning. The stream is bounded, and Redis may be slow,
full, restarted or gone: texts wait in a bounded outbox, what is missing or comes twice is
counted, and a reader whose place is no more starts over. A text is a hint; nothing waits for it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import redis

from kvstore.errors import InvalidRecord, StoreUnavailable
from kvstore.ngram_forgetting import ForgottenDomains, forgotten_domains
from kvstore.ngram_origins import Origins
from kvstore.ngram_outbox import Outbox
from kvstore.ngram_records import (
    ENTRY_TOKENS,
    MAX_DOMAIN_BYTES,
    SHORTEST_TEXT,
    TEXTS,
    Forget,
    NgramKeys,
    TextBatch,
    Tokens,
    decode,
    encode,
    unpack,
)
from kvstore.redis_client import RedisSettings, connect_blocking, store_errors

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.1
"""The thread's longest sleep, and how long Redis may hold a read that finds nothing."""
PAGE: Final = 64
"""Entries read at once."""
CHORES_S: Final = 1.0
"""From one look at what changes rarely to the next."""
TRIM_S: Final = 30.0
FIRST_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 5.0
NEW_TOKENS: Final = 1 << 22
"""Of texts that wait for the thread; the oldest go first."""


class TextStore(Protocol):
    """What the thread writes: `NgramIndex`, as far as it is needed here."""

    def known(self, domain: bytes, tokens: Tokens, born_s: float) -> int: ...

    def add(self, domain: bytes, tokens: Tokens, born_s: float) -> None: ...

    def erase(self, domain: bytes, until_s: float) -> int: ...


@dataclass(frozen=True)
class ExchangeSettings:
    """What an exchange is told.

    Attributes:
        keys: Of the cluster and its tokenizer.
        origin: This worker; no other, and none before it, has the same.
        vocab_size: Tokens; texts with others are not believed.
        ttl_s: Older texts are neither kept nor taken in, seconds.
        stream_tokens: Most tokens in the stream, about.
    """

    keys: NgramKeys
    origin: str
    vocab_size: int
    ttl_s: float
    stream_tokens: int

    @property
    def stream_entries(self) -> int:
        """Most entries of the stream, each of up to `ENTRY_TOKENS`."""
        return max(1, self.stream_tokens // ENTRY_TOKENS)


@dataclass(frozen=True)
class ExchangeStats:
    """What an exchange did so far.

    Attributes:
        connected: Whether Redis took or gave the last time.
        failures: Attempts that Redis refused or let wait too long.
        published: Texts given to the others.
        received: Texts taken from them.
        dropped: Own texts that the others will not see: the outbox was full.
        twice: Batches that had come before.
        missing: Batches of others that never came.
        garbage: Entries that could not be believed, or texts of them.
        restarts: Times that the stream was another than before.
        forgotten: Texts removed because their tenant was forgotten.
        delay_s: From the end of the latest text received to its being here, seconds.
    """

    connected: bool
    failures: int
    published: int
    received: int
    dropped: int
    twice: int
    missing: int
    garbage: int
    restarts: int
    forgotten: int
    delay_s: float


class NgramExchange:
    """Writes `store` from `start` to `close`.

    Args:
        settings: What it is told.
        server: The cluster's Redis.
        store: Written by this exchange's thread only.
        chore: Called about once a second with a connected client, on that thread. What it
            raises of `StoreError` counts as a failure of Redis.
        clock: Wall clock, seconds.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        server: RedisSettings,
        store: TextStore,
        chore: Callable[[redis.Redis], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._server, self._store = settings, server, store
        self._chore, self._clock = chore, clock
        self._origins = Origins()
        self._forgotten = ForgottenDomains()
        self._new: deque[tuple[bytes, Tokens, float]] = deque()
        self._new_tokens = 0
        self._new_lock = threading.Lock()
        self._outbox = Outbox(settings.origin, settings.keys.fingerprint)
        self._last_id = b"0-0"
        self._connected = False
        self._retry_at_s = self._chore_at_s = self._trim_at_s = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._failures = self._published = self._received = self._unheard = 0
        self._twice = self._garbage = self._restarts = self._erased = 0
        self._delay_s = 0.0
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to read and to write."""
        assert self._thread is None, "an exchange is started once"
        self._thread = threading.Thread(target=self._run, name="ngram-exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; returns when the thread has ended, after at most two timeouts of Redis."""
        self._stopping.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def publish(self, domain: bytes, tokens: Tokens) -> None:
        """A text is finished: index it here, and tell the others. From any thread, at once.

        Args:
            domain: Whose it is, at most `MAX_DOMAIN_BYTES`.
            tokens: [n] int32; not changed by anybody from now on.
        """
        if len(domain) <= MAX_DOMAIN_BYTES and len(tokens) >= SHORTEST_TEXT:
            with self._new_lock:
                self._new.append((domain, tokens, self._clock()))
                self._new_tokens += len(tokens)
                while self._new_tokens > NEW_TOKENS and len(self._new) > 1:
                    self._new_tokens -= len(self._new.popleft()[1])
                    self._unheard += 1
            self._news.set()

    def stats(self) -> ExchangeStats:
        """From any thread."""
        return ExchangeStats(
            connected=self._connected,
            failures=self._failures,
            published=self._published,
            received=self._received,
            dropped=self._unheard + self._outbox.dropped,
            twice=self._twice,
            missing=self._origins.missing,
            garbage=self._garbage,
            restarts=self._restarts,
            forgotten=self._erased,
            delay_s=self._delay_s,
        )

    def _run(self) -> None:
        with connect_blocking(self._server) as client:
            while not self._stopping.is_set():
                try:
                    self._take_own()
                    if time.monotonic() < self._retry_at_s:
                        self._news.wait(WAIT_S)
                        self._news.clear()
                    else:
                        self._talk(client)
                except Exception as error:
                    # Redis', or a fault of ours: drafts are missed, and everything else goes on.
                    self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._connected or self._failures == 1:
            is_known = isinstance(error, StoreUnavailable)
            logger.warning("ngram_exchange=lost error=%s", error, exc_info=not is_known)
        self._connected = False
        self._retry_at_s = time.monotonic() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    def _take_own(self) -> None:
        """Own texts: into our index, and into batches for the others."""
        while self._new:
            with self._new_lock:
                domain, tokens, born_s = self._new.popleft()
                self._new_tokens -= len(tokens)
            if self._forgotten.covers(domain, born_s):
                continue
            new = tokens[self._store.known(domain, tokens, born_s) :]
            if len(new) >= SHORTEST_TEXT:
                self._store.add(domain, new, born_s)
                self._outbox.put(domain, new, born_s)
        self._outbox.close_batches()

    def _talk(self, client: redis.Redis) -> None:
        """One round with Redis; blocks for at most `WAIT_S` where nothing comes.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        with store_errors(self._server):
            if not self._connected:
                self._join(client)
            self._send(client)
            now_s = time.monotonic()
            if now_s >= self._chore_at_s and self._chore is not None:
                self._chore_at_s = now_s + CHORES_S
                self._chore(client)
            if now_s >= self._trim_at_s:
                self._trim_at_s = now_s + TRIM_S
                oldest_ms = max(0, int((self._clock() - self._settings.ttl_s) * 1000))
                client.xtrim(self._settings.keys.stream, minid=oldest_ms, approximate=True)
            stream = self._settings.keys.stream
            wait_ms = None if self._new else int(WAIT_S * 1000)
            answer: Any = client.xread({stream: self._last_id}, count=PAGE, block=wait_ms)
        if not self._connected:
            self._connected = True
            self._backoff_s = FIRST_BACKOFF_S
            logger.info("ngram_exchange=connected failures=%d", self._failures)
        pairs = answer.items() if isinstance(answer, dict) else answer or ()
        for _, entries in pairs:
            # RESP3 wraps the entries of a stream in one more list.
            for entry_id, fields in entries[0] if isinstance(answer, dict) else entries:
                self._last_id = entry_id
                self._take_in(fields)

    def _join(self, client: redis.Redis) -> None:
        """Learns what has been forgotten, and whether the stream still is the one we know."""
        for domain, until_s in forgotten_domains(client, self._settings.keys).items():
            self._forget(domain, until_s)
        if self._last_id == b"0-0":
            return
        try:
            info: Any = client.xinfo_stream(self._settings.keys.stream)
            latest = info["last-generated-id"]
        except redis.ResponseError:  # there is none
            latest = b"0-0"
        if _id_order(latest) < _id_order(self._last_id):
            self._restarts += 1
            self._last_id = b"0-0"

    def _send(self, client: redis.Redis) -> None:
        stream = self._settings.keys.stream
        while (batch := self._outbox.first) is not None:
            with client.pipeline(transaction=False) as pipe:
                pipe.xadd(
                    stream,
                    {TEXTS: encode(batch)},
                    maxlen=self._settings.stream_entries,
                    approximate=True,
                )
                pipe.expire(stream, max(1, int(self._settings.ttl_s)))
                pipe.execute()
            # A batch whose answer was lost goes twice, and is taken in once.
            self._published += len(batch.texts)
            self._outbox.take()

    def _take_in(self, fields: dict[bytes, bytes]) -> None:
        try:
            record = decode(fields, self._settings.keys.fingerprint)
            if isinstance(record, Forget):
                self._forget(record.domain, record.until_s)
                return
            if record.origin == self._settings.origin:
                return
            if self._origins.saw(record.origin, record.number) == "twice":
                self._twice += 1
                return
            self._take_in_texts(record)
        except InvalidRecord as error:
            self._garbage += 1
            if self._garbage == 1:
                logger.warning("ngram_exchange=garbage reason=%s, told once", error)

    def _take_in_texts(self, batch: TextBatch) -> None:
        now_s = self._clock()
        for text in batch.texts:
            if now_s - text.born_s > self._settings.ttl_s:
                continue
            if self._forgotten.covers(batch.domain, text.born_s):
                continue
            tokens = unpack(text.tokens, self._settings.vocab_size)
            # Another machine's clock may be ahead; no text is younger than now.
            born_s = min(text.born_s, now_s)
            known = self._store.known(batch.domain, tokens, born_s)
            self._store.add(batch.domain, tokens[known:], born_s)
            self._received += 1
            self._delay_s = max(0.0, now_s - text.born_s)

    def _forget(self, domain: bytes, until_s: float) -> None:
        if self._forgotten.add(domain, until_s):
            self._erased += self._store.erase(domain, until_s)
            self._outbox.forget(domain, until_s)


def _id_order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number or 0)
