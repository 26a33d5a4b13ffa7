"""Tells routers which KV blocks this verifier's engine holds, and how busy it is.

The engine's own events carry prompts, to anybody who connects; so they go no further than
this process, over a socket in a folder that only its user can enter. From here go hashes
alone, signed with the cluster token. One thread does it all:

    engine --events, ipc--> account --deltas, snapshots--> routers that follow

A router follows for a few seconds at a time. One that reads too slowly is dropped, and gets a
snapshot when it asks next. Nothing here can hold up the engine or a request.
"""

import logging
import socket as network
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Self

import zmq

from kvstore.errors import MalformedMessage
from kvstore.hashing import SCHEME, Naming
from kvstore.kv_account import KvAccount
from kvstore.kv_messages import Delta, Follow, KvCodec, LoadReport, Refusal
from replicas.draft.listening import resolve, tcp_endpoint
from replicas.verifier.engine_events import EngineEvents, EngineSource

logger = logging.getLogger(__name__)

SIGN_OF_LIFE_S: Final = 0.25
FOLLOW_FOR_S: Final = 5.0
MAX_FOLLOWERS: Final = 256
QUEUED_MESSAGES: Final = 512
MAX_FOLLOW_BYTES: Final = 4096


@dataclass(frozen=True)
class RelaySettings:
    """What a relay is told.

    Attributes:
        host: Address to listen on, or a name of one.
        advertised_host: Address under which routers reach it.
        first_port: Of the ports it may take; it takes the first that is free.
        last_port: Of the ports it may take.
    """

    host: str
    advertised_host: str
    first_port: int
    last_port: int


@dataclass
class RelayStats:
    """Counts since the start, and whether the engine's past is known."""

    snapshots: int = 0
    dropped_followers: int = 0
    is_listening: bool = False
    malformed: dict[str, int] = field(default_factory=dict)


class KvRelay:
    """Relays one engine's account from `start` to `close`.

    Args:
        source: The engine.
        settings: Where to listen.
        naming: What our names of blocks depend on.
        codec: Of the cluster's token.
        load: Called in the relay's thread, a few times a second.
    """

    def __init__(
        self,
        source: EngineSource,
        settings: RelaySettings,
        naming: Naming,
        codec: KvCodec,
        load: Callable[[], LoadReport],
    ) -> None:
        self.stats = RelayStats()
        self.account = KvAccount(naming)
        self._source = source
        self._settings = settings
        self._naming = naming
        self._codec = codec
        self._load = load
        self._followers: dict[bytes, float] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> str:
        """Listens and begins to relay.

        Returns:
            `tcp://host:port`, where routers ask; empty if no port was free. Routers then know
            nothing of this verifier's blocks, and that is all.
        """
        assert self._thread is None, "a relay is started once"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        routers = context.socket(zmq.ROUTER)
        routers.set(zmq.LINGER, 0)
        routers.set(zmq.MAXMSGSIZE, MAX_FOLLOW_BYTES)
        routers.set(zmq.SNDHWM, QUEUED_MESSAGES)
        routers.set(zmq.RCVHWM, QUEUED_MESSAGES)
        routers.set(zmq.ROUTER_MANDATORY, 1)
        port = self._bind(routers)
        if port is None:
            routers.close()
            context.term()
            return ""
        engine = EngineEvents(context, self._source, self.account, self._stopping.is_set)
        self._context = context
        self._thread = threading.Thread(
            target=self._run, args=(engine, routers), name="kv-relay", daemon=True
        )
        self._thread.start()
        return tcp_endpoint(self._settings.advertised_host, port)

    def close(self) -> None:
        """Stops, and frees the port; returns when the thread has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._context is not None:
            self._context.term()
            self._context = None

    def _bind(self, routers: zmq.Socket[bytes]) -> int | None:
        settings = self._settings
        reason = "the range is empty"
        try:
            address = resolve(settings.host)
        except network.gaierror as error:
            logger.warning("kv relay=off host=%s error=%s", settings.host, error)
            return None
        if ":" in address:
            routers.set(zmq.IPV6, 1)
        for port in range(settings.first_port, settings.last_port + 1):
            try:
                routers.bind(tcp_endpoint(address, port))
            except zmq.ZMQError as error:
                reason = zmq.strerror(error.errno or 0)
            else:
                return port
        logger.warning(
            "kv relay=off ports=%d-%d error=%s", settings.first_port, settings.last_port, reason
        )
        return None

    def _run(self, engine: EngineEvents, routers: zmq.Socket[bytes]) -> None:
        with closing(engine), routers:
            self._relay(engine, routers)

    def _relay(self, engine: EngineEvents, routers: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(engine.socket, zmq.POLLIN)
        poller.register(routers, zmq.POLLIN)
        spoke_at_s, epoch = 0.0, self.account.epoch
        engine.replay()  # What the engine said before we listened.
        self.stats.is_listening = True
        while not self._stopping.is_set():
            try:
                poller.poll(int(1000 * SIGN_OF_LIFE_S))
                engine.take()
                now_s = time.monotonic()
                delta = self.account.delta()
                if self.account.epoch != epoch:
                    epoch = self.account.epoch
                    for follower in list(self._followers):
                        self._send_snapshot(routers, follower)
                elif delta.changes or now_s - spoke_at_s >= SIGN_OF_LIFE_S:
                    self._tell_all(routers, delta, now_s)
                    spoke_at_s = now_s
                self._take_follows(routers, now_s)
            except Exception:  # a hint's machinery must not die of one bad message
                logger.exception("kv relay=stumbled")
                self.account.restart(at=self.account.next_batch)
                self._stopping.wait(SIGN_OF_LIFE_S)

    def _tell_all(self, routers: zmq.Socket[bytes], delta: Delta, now_s: float) -> None:
        delta = Delta(delta.epoch, delta.sequence, delta.changes, self._load())
        frames = self._codec.pack(delta)
        for follower, until_s in list(self._followers.items()):
            if until_s < now_s:
                del self._followers[follower]
            else:
                self._send(routers, follower, frames)

    def _take_follows(self, routers: zmq.Socket[bytes], now_s: float) -> None:
        for _ in range(MAX_FOLLOWERS):
            try:
                follower, *frames = routers.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                follow = self._codec.unpack_follow(frames)
            except MalformedMessage as error:
                counts = self.stats.malformed
                counts[error.what] = counts.get(error.what, 0) + 1
                continue
            if reason := self._why_not(follow):
                self._send(routers, follower, self._codec.pack(Refusal(reason)))
                continue
            is_new = follower not in self._followers
            if is_new and len(self._followers) >= MAX_FOLLOWERS:
                continue
            self._followers[follower] = now_s + FOLLOW_FOR_S
            if is_new or follow.resync:
                self._send_snapshot(routers, follower)

    def _why_not(self, follow: Follow) -> str:
        ours = (SCHEME, self._naming.block_tokens, self._naming.weights_fingerprint)
        theirs = (follow.scheme, follow.block_tokens, follow.weights_fingerprint)
        names = ("hash scheme", "block size", "weights")
        different = [name for name, a, b in zip(names, ours, theirs, strict=True) if a != b]
        return f"another {' and '.join(different)}" if different else ""

    def _send_snapshot(self, routers: zmq.Socket[bytes], follower: bytes) -> None:
        self.stats.snapshots += 1
        for part in self.account.snapshot():
            if not self._send(routers, follower, self._codec.pack(part)):
                return

    def _send(self, routers: zmq.Socket[bytes], follower: bytes, frames: list[bytes]) -> bool:
        try:
            routers.send_multipart([follower, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:  # It reads too slowly, or is gone.
            self._followers.pop(follower, None)
            self.stats.dropped_followers += 1
            return False
        return True
