"""Which ports processes listen on, and one on which nobody does."""

import socket
from collections.abc import Iterator
from typing import Any

import psutil


def ports_of(name: str, first: int, last: int) -> list[int]:
    """Ports from `first` to `last` on which processes with `name` in their command listen."""
    found = []
    for connection in psutil.net_connections("tcp"):
        for port in _listened(connection, first, last):
            if name in "".join(psutil.Process(connection.pid).cmdline()):
                found.append(port)
    return sorted(found)


def ports_of_process(pid: int, first: int, last: int) -> Iterator[int]:
    """The same of one process."""
    for connection in psutil.Process(pid).net_connections("tcp"):
        yield from _listened(connection, first, last)


def _listened(connection: Any, first: int, last: int) -> Iterator[int]:
    if connection.status == psutil.CONN_LISTEN and first <= connection.laddr.port <= last:
        yield connection.laddr.port


def free_port(host: str = "127.0.0.1") -> int:
    """One on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
