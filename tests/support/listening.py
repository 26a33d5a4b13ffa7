"""Which ports processes of a name listen on."""

import psutil


def ports_of(name: str, first: int, last: int) -> list[int]:
    """Ports from `first` to `last` on which processes with `name` in their command listen."""
    found = []
    for connection in psutil.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        _, port, *_ = connection.laddr
        if first <= port <= last and name in "".join(psutil.Process(connection.pid).cmdline()):
            found.append(port)
    return sorted(found)
