"""Lets a node leave a Ray cluster without cutting its streams: what a pod does before it stops.

    python -m cluster.leave SECONDS

Ray is told that this node drains. Serve then starts replacements elsewhere and stops the replicas
here, each of which waits for its own streams. Returns when none is left, or after SECONDS.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import psutil
import ray
from ray._private import services
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

RAYLET: Final = re.compile(r"/raylet/raylet .*--node_id=([0-9a-f]+)")
REPLICA_TITLE = "ray::ServeReplica"
REASON = "its pod is being stopped"
POLL_S = 1.0


def leave(within_s: float) -> bool:
    """Drains this node; True once no replica runs on it, False if some still do after `within_s`.

    Raises:
        ConnectionError: No Ray runs on this node.
        RuntimeError: Ray refuses, as it does for its head node.
    """
    deadline_s = time.monotonic() + within_s
    tell_ray(node_of(process_titles()), within_s)
    while any(replicas(process_titles())):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def tell_ray(node_id: str, within_s: float) -> None:
    """Tells Ray that a node will be gone in `within_s` seconds.

    Raises:
        ConnectionError: No Ray runs on this node.
        RuntimeError: Ray refuses.
    """
    address = services.canonicalize_bootstrap_address_or_die("auto")
    accepted, why_not = ray._raylet.GcsClient(address=address).drain_node(
        node_id,
        DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        REASON,
        int((time.time() + within_s) * 1000),
    )
    if not accepted:
        raise RuntimeError(f"Ray does not let this node go: {why_not}")


def node_of(titles: Iterable[str]) -> str:
    """The id of the Ray node whose raylet is among these processes, the last if several are.

    Raises:
        ConnectionError: There is none.
    """
    found = [match[1] for title in titles if (match := RAYLET.search(title))]
    if not found:
        raise ConnectionError("no raylet runs on this node")
    return found[-1]


def process_titles() -> Iterator[str]:
    """What the processes that are visible here call themselves."""
    for process in psutil.process_iter(["cmdline"]):
        yield " ".join(process.info["cmdline"] or ())


def replicas(titles: Iterable[str]) -> Iterator[str]:
    """The titles that are those of Serve's replicas."""
    return (title for title in titles if title.startswith(REPLICA_TITLE))


if __name__ == "__main__":
    sys.exit(0 if leave(float(sys.argv[1])) else 1)
