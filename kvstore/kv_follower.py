"""Follows every verifier's account of its KV blocks, and keeps a router's index by them.

One task a verifier, on the event loop: it asks, takes in what comes, and asks again once a
second. A verifier that can't be reached, is silent or refuses stays cold; nobody waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from kvstore.errors import MalformedMessage
from kvstore.hashing import SCHEME, Naming
from kvstore.kv_feed import KvFeed
from kvstore.kv_messages import Follow, KvCodec, Refusal
from kvstore.prefix_index import PrefixIndex
from kvstore.signed_frames import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

FOLLOW_PERIOD_S = 1.0
RESYNC_PERIOD_S = 0.2
"""From one asking for a snapshot to the next: a hopeless case must not keep a verifier busy."""
WAKE_S = 0.25
AT_ONCE = 16
"""Messages taken in before others on the loop get their turn."""
QUEUED_MESSAGES = 1024


@dataclass
class FollowerStats:
    """Counts since the start, over all verifiers, gone ones included.

    Attributes:
        gaps: How often a copy was found to be behind or doubtful.
        repairs: How often one was made right again by a snapshot.
        malformed: Messages that were dropped, by the check that failed.
        refused: Answers of verifiers whose hashes mean something else.
    """

    gaps: int = 0
    repairs: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    refused: int = 0


@dataclass
class _Followed:
    endpoint: str
    feed: KvFeed
    task: asyncio.Task[None]


class KvFollower:
    """Follows verifiers until it is closed; make it, and use it, on one event loop.

    Args:
        index: Kept by it.
        naming: What this router's names of blocks depend on.
        codec: Of the cluster's token.
    """

    def __init__(self, index: PrefixIndex, naming: Naming, codec: KvCodec) -> None:
        self._index = index
        self._naming = naming
        self._codec = codec
        self._context = zmq.asyncio.Context()
        self._followed: dict[str, _Followed] = {}
        self._past = FollowerStats()

    @property
    def stats(self) -> FollowerStats:
        """Counts since the start."""
        feeds = [followed.feed for followed in self._followed.values()]
        past = self._past
        return FollowerStats(
            past.gaps + sum(feed.gaps for feed in feeds),
            past.repairs + sum(feed.repairs for feed in feeds),
            dict(past.malformed),
            past.refused,
        )

    def feed(self, replica_id: str) -> KvFeed | None:
        """What is known of one verifier."""
        followed = self._followed.get(replica_id)
        return followed.feed if followed else None

    def cached_tokens(self) -> dict[str, int]:
        """Prompt tokens that each verifier says it found cached, since its start."""
        return {
            replica_id: followed.feed.load.cached_prompt_tokens
            for replica_id, followed in self._followed.items()
            if followed.feed.load is not None
        }

    def follow(self, endpoints: Mapping[str, str]) -> None:
        """From now on these verifiers, by their ids, and no others.

        Args:
            endpoints: `tcp://host:port` of each verifier that has one.
        """
        for replica_id, followed in list(self._followed.items()):
            if endpoints.get(replica_id) != followed.endpoint:
                self._leave(replica_id)
        for replica_id, endpoint in endpoints.items():
            if replica_id not in self._followed:
                feed = KvFeed(self._index, replica_id)
                task = asyncio.get_running_loop().create_task(
                    self._run(replica_id, endpoint, feed), name=f"kv-follow-{replica_id}"
                )
                self._followed[replica_id] = _Followed(endpoint, feed, task)

    async def close(self) -> None:
        """Stops following."""
        tasks = [followed.task for followed in self._followed.values()]
        self.follow({})
        if tasks:
            await asyncio.wait(tasks)
        self._context.destroy(linger=0)

    def _leave(self, replica_id: str) -> None:
        followed = self._followed.pop(replica_id)
        followed.task.cancel()
        followed.feed.close()
        self._past.gaps += followed.feed.gaps
        self._past.repairs += followed.feed.repairs

    async def _run(self, replica_id: str, endpoint: str, feed: KvFeed) -> None:
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RCVHWM, QUEUED_MESSAGES)
            socket.set(zmq.RECONNECT_IVL_MAX, 2000)
            socket.connect(endpoint)
            asked_at_s = float("-inf")
            while True:
                now_s = time.monotonic()
                waits_for_s = RESYNC_PERIOD_S if feed.is_doubtful(now_s) else FOLLOW_PERIOD_S
                if now_s - asked_at_s >= waits_for_s:
                    asked_at_s = now_s
                    await self._ask(socket, feed.needs_resync)
                if await socket.poll(int(1000 * WAKE_S)):
                    await self._take(socket, feed)
        except zmq.ZMQError as error:
            logger.warning("kv follow=lost verifier=%s error=%s", replica_id, error)
            feed.doubt()
        finally:
            socket.close(linger=0)

    async def _ask(self, socket: zmq.asyncio.Socket, resync: bool) -> None:
        naming = self._naming
        follow = Follow(SCHEME, naming.block_tokens, naming.weights_fingerprint, resync)
        # Not connected for long, the queue may be full of what would be said.
        with suppress(zmq.Again):
            await socket.send_multipart(self._codec.pack(follow), zmq.NOBLOCK)

    async def _take(self, socket: zmq.asyncio.Socket, feed: KvFeed) -> None:
        for _ in range(AT_ONCE):
            try:
                frames = await socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._codec.unpack_telling(frames)
            except MalformedMessage as error:
                counts = self._past.malformed
                counts[error.what] = counts.get(error.what, 0) + 1
                feed.doubt()
                continue
            if isinstance(message, Refusal):
                self._past.refused += 1
                logger.warning("kv follow=refused reason=%s", message.reason)
                feed.doubt()
            else:
                feed.take(message, time.monotonic())
