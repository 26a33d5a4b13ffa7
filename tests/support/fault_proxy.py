"""A TCP proxy that can do to a connection what networks do."""

import contextlib
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from types import TracebackType


class FaultProxy:
    """Forwards connections to a port on loopback, until told otherwise.

    Attributes:
        port: Where it listens.
        black_hole: Takes what is sent and passes on nothing, in both directions.
        delay_s: How much later everything arrives.
        passes: Bytes that still arrive, in both directions together; then every connection is
            reset, those that come later, too. None: no end.
    """

    def __init__(self, target_port: int) -> None:
        self.black_hole = False
        self.delay_s = 0.0
        self.passes: int | None = None
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._delayed: list[tuple[float, int, socket.socket, bytes]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="fault proxy")
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """For ZeroMQ."""
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends all connections in good order; new ones are taken."""
        with self._lock:
            for end in list(self._peers):
                self._drop(end)

    def reset(self) -> None:
        """Ends all connections with RST, as a machine does that has lost them."""
        with self._lock:
            self._reset()

    def close(self) -> None:
        """Ends everything and waits for its thread."""
        self._closing = True
        self._thread.join()
        self.cut()
        self._selector.close()
        self._listener.close()

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing:
            ready = self._selector.select(0.005)
            with self._lock:
                for key, _ in ready:
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._listener:
                        self._accept()
                    elif end in self._peers:  # else dropped a moment ago
                        self._read(end)
                while self._delayed and self._delayed[0][0] <= time.monotonic():
                    _, _, end, data = heapq.heappop(self._delayed)
                    self._send(end, data)
                if self.passes == 0 and not self._delayed:
                    self._reset()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target_port), timeout=1)
        except OSError:
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            end.settimeout(1)
            self._peers[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _read(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(end)
        elif not self.black_hole:
            if self.passes is not None:
                data = data[: self.passes]
                self.passes -= len(data)
            due_s = time.monotonic() + self.delay_s
            heapq.heappush(self._delayed, (due_s, next(self._numbers), self._peers[end], data))

    def _send(self, end: socket.socket, data: bytes) -> None:
        if end not in self._peers:
            return
        try:
            end.sendall(data)
        except OSError:
            self._drop(end)

    def _reset(self) -> None:
        for end in list(self._peers):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in list(self._peers):
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        """Both ends of a connection."""
        for each in (end, self._peers.get(end)):
            if each is not None and self._peers.pop(each, None) is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()
