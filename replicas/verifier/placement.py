"""Which draft worker a session goes to: the nearest with room, among equals by rendezvous hashing.

Each worker draws a number for the session, the highest gets it (Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", 1998). When a worker leaves, only its
sessions go elsewhere, spread over all that are left; when it comes back, only they return.

A worker that has far more than its share is passed over, as in consistent hashing with bounded
loads (Mirrokni, Thorup and Zadimoghaddam, 2018): shares are by the places that workers have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Final

SAME_NODE, SAME_ZONE, ELSEWHERE = 0, 1, 2
NO_DISTANCES: Final[Mapping[str, int]] = {}
SPREAD: Final = 1.25
"""Most that a worker has of what would be its share."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has to do.

    Attributes:
        sessions: Of all verifiers.
        places: Sequences that it drafts at once; 1 where it does not say.
    """

    sessions: int
    places: int = 1


def placed(
    session: int,
    loads: Mapping[str, Load],
    now_at: str | None = None,
    distances: Mapping[str, int] = NO_DISTANCES,
) -> list[str]:
    """All workers for a session: the one to ask first, then those that stand in for it.

    Args:
        session: 0 <= session < 2^64.
        loads: By worker.
        now_at: The worker that the session counts for already.
        distances: As for `ranked`.
    """
    ranking = ranked(session, loads, distances)
    counted = now_at in loads
    total = sum(load.sessions for load in loads.values()) + (not counted)
    share = SPREAD * total / max(1, sum(load.places for load in loads.values()))
    full = {
        worker_id
        for worker_id, load in loads.items()
        if load.sessions + (worker_id != now_at) > ceil(share * load.places)
    }
    return [w for w in ranking if w not in full] + [w for w in ranking if w in full]


@dataclass(frozen=True)
class Place:
    """Where a worker or verifier runs; an empty zone is not known."""

    node_ip: str
    zone: str = ""


def distance(one: Place, other: Place) -> int:
    """`SAME_NODE`, `SAME_ZONE` or `ELSEWHERE`."""
    if one.node_ip == other.node_ip:
        return SAME_NODE
    return SAME_ZONE if one.zone and one.zone == other.zone else ELSEWHERE


def ranked(
    session: int, worker_ids: Iterable[str], distances: Mapping[str, int] = NO_DISTANCES
) -> list[str]:
    """All workers, the session's own first, then the one it goes to without it, and so on.

    Args:
        session: 0 <= session < 2^64.
        worker_ids: In any order; the same ones give the same ranking in every process.
        distances: Of some of them from this verifier; nearer ones come first. Without: 0.
    """
    key = session.to_bytes(8, "little")
    drawn = sorted(
        worker_ids,
        key=lambda worker_id: (
            blake2b(worker_id.encode(), digest_size=8, key=key).digest(),
            worker_id,
        ),
        reverse=True,
    )
    return sorted(drawn, key=lambda worker_id: distances.get(worker_id, 0)) if distances else drawn
