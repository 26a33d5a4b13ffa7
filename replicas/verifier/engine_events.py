"""Reads what an engine tells of its KV blocks into an account, and asks again for what was lost."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import zmq

from kvstore.kv_account import KvAccount, Taken

logger = logging.getLogger(__name__)

BATCHES_AT_ONCE: Final = 512
QUEUED_BATCHES: Final = 100_000
"""As many as the engine itself would queue; what is lost beyond is asked for again."""
REPLAY_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.25
END_OF_REPLAY: Final = -1


@dataclass(frozen=True)
class EngineSource:
    """Where the engine tells of its blocks.

    Attributes:
        events: Endpoint of its events.
        replay: Endpoint where past ones can be had again.
        topic: That it publishes under.
    """

    events: str
    replay: str
    topic: str


class EngineEvents:
    """Keeps an account by an engine's events; use it in one thread.

    Args:
        context: Of its sockets.
        source: The engine.
        account: Kept by it.
        is_stopping: Asked while it waits for a replay.

    Attributes:
        socket: To poll for new events.
        replays: How often the engine was asked for past ones.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        source: EngineSource,
        account: KvAccount,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.replays = 0
        self._context = context
        self._source = source
        self._account = account
        self._is_stopping = is_stopping
        self.socket = context.socket(zmq.SUB)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, QUEUED_BATCHES)
        self.socket.subscribe(source.topic.encode())
        self.socket.connect(source.events)

    def take(self) -> None:
        """Takes in what has come."""
        account = self._account
        for _ in range(BATCHES_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3:
                continue
            number, payload = int.from_bytes(frames[1], "big"), frames[2]
            if account.take(number, payload) is not Taken.GAP:
                continue
            logger.warning("kv events=gap expected=%d got=%d", account.next_batch, number)
            self.replay()
            if account.take(number, payload) is Taken.GAP:
                account.restart(at=number)
                account.take(number, payload)

    def replay(self) -> None:
        """Asks the engine for the batches from the next one on, as far as it has them."""
        account = self._account
        self.replays += 1
        with self._context.socket(zmq.DEALER) as asker:
            asker.set(zmq.LINGER, 0)
            asker.connect(self._source.replay)
            asker.send_multipart([b"", account.next_batch.to_bytes(8, "big")])
            deadline_s = time.monotonic() + REPLAY_TIMEOUT_S
            while (left_s := deadline_s - time.monotonic()) > 0 and not self._is_stopping():
                if not asker.poll(int(1000 * min(left_s, POLL_S)) + 1):
                    continue
                frames = asker.recv_multipart()
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number == END_OF_REPLAY or account.take(number, frames[-1]) is Taken.GAP:
                    return  # That is all, or it no longer has what is missing.

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()
