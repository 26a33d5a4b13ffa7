"""A draft worker that does what a test says, on a real socket and a thread of its own."""

import threading
from collections.abc import Callable
from types import TracebackType

import numpy as np
import zmq

from replicas.messages import AskBatch, Codec, Draft, DraftBatch, pack_tokens

Script = Callable[["ScriptedWorker", AskBatch], list[bytes] | None]

DRAFT_TOKENS = 8
"""How many a well-behaved one answers with."""


class ScriptedWorker:
    """Drafts that the last token of a context is followed by the next numbers.

    Attributes:
        port: On loopback; the same after a restart.
        asked: Every ask that it read.
        script: What it answers with instead: frames, or None for nothing.
        holding: Whether answers are kept back, until this is False again.
    """

    def __init__(self, codec: Codec, vocab_size: int) -> None:
        self.codec = codec
        self.vocab_size = vocab_size
        self.asked: list[AskBatch] = []
        self.script: Script | None = None
        self.holding = False
        self.port = 0
        self._contexts: dict[tuple[bytes, int], list[int]] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.start()

    @property
    def endpoint(self) -> str:
        """For ZeroMQ."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def sessions(self) -> set[int]:
        """All that it was ever asked about."""
        return {ask.session for batch in self.asked for ask in batch.asks}

    def start(self) -> None:
        """Returns when it listens; it knows of no session."""
        self._contexts.clear()
        self._stopping = False
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="worker")
        self._thread.start()
        assert listening.wait(10)

    def stop(self) -> None:
        """Gone, with all that was held back."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "ScriptedWorker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def honest(self, identity: bytes, batch: AskBatch) -> DraftBatch:
        """The answer of a worker as it should be."""
        answer = DraftBatch(batch.step, [], [])
        for session in batch.forget:
            self._contexts.pop((identity, session), None)
        for ask in batch.asks:
            tokens = np.frombuffer(ask.appended, dtype="<i4").tolist()
            context = self._contexts.setdefault((identity, ask.session), [])
            if ask.base > len(context):
                answer.unknown.append(ask.session)
                continue
            context[ask.base :] = tokens
            count = DRAFT_TOKENS if ask.wanted else 0
            follow = (np.arange(1, count + 1, dtype=np.int32) + context[-1]) % self.vocab_size
            packed = pack_tokens(follow.astype(np.int32))
            answer.drafts.append(Draft(ask.session, len(context), packed, "prompt_lookup"))
        return answer

    def _run(self, listening: threading.Event) -> None:
        held: list[list[bytes]] = []
        with zmq.Context() as sockets, sockets.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            if self.port:
                socket.bind(self.endpoint)
            else:
                self.port = socket.bind_to_random_port("tcp://127.0.0.1")
            listening.set()
            while not self._stopping:
                if not self.holding:
                    for frames in held:
                        socket.send_multipart(frames)
                    held.clear()
                if not socket.poll(2):
                    continue
                identity, *frames = socket.recv_multipart()
                batch = self.codec.unpack_ask(frames)
                answer: list[bytes] | None
                if self.script is not None:
                    answer = self.script(self, batch)
                else:
                    answer = self.codec.pack(self.honest(identity, batch))
                self.asked.append(batch)
                if answer is not None:
                    held.append([identity, *answer])
