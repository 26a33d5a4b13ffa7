"""Network namespaces as machines, joined by a bridge: their wires can be cut and mended."""

import os
import shutil
import subprocess
from typing import Final

from missing import missing

BRIDGE: Final = "plbr0"
NET: Final = "10.213.77"
HERE: Final = f"{NET}.1"
"""This machine's address on the bridge."""


def need_namespaces() -> None:
    """Skips where network namespaces can't be made."""
    if os.geteuid() or shutil.which("ip") is None:
        missing("network namespaces need root and iproute2")


def ip(*words: str) -> None:
    """Runs iproute2."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Wires:
    """A bridge, and a namespace for each address that is asked for."""

    def __init__(self) -> None:
        self._places: list[str] = []
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")

    def place(self, number: int) -> tuple[str, list[str]]:
        """A machine: its address, and what to put before a command that shall run there."""
        name, wire, address = f"pl-{number}", f"plw{number}", f"{NET}.{number}"
        self._places.append(name)
        ip("netns", "add", name)
        ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", wire, "master", BRIDGE, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            ip("-n", name, *words)
        return address, ["ip", "netns", "exec", name]

    def cut(self, address: str) -> None:
        """Nothing gets to this machine any more, nor from it; nobody is told."""
        ip("link", "set", f"plw{address.rpartition('.')[2]}", "down")

    def mend(self, address: str) -> None:
        """As before."""
        ip("link", "set", f"plw{address.rpartition('.')[2]}", "up")

    def end(self) -> None:
        """Removes all of it."""
        for name in self._places:
            ip("netns", "delete", name)
        ip("link", "delete", BRIDGE)
