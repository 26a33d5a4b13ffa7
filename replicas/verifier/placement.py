"""Which draft worker a session goes to: rendezvous hashing.

Each worker draws a number for the session, the highest gets it (Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", 1998). When a worker leaves, only its
sessions go elsewhere, spread over all that are left; when it comes back, only they return.
"""

from collections.abc import Iterable
from hashlib import blake2b


def ranked(session: int, worker_ids: Iterable[str]) -> list[str]:
    """All workers, the session's own first, then the one it goes to without it, and so on.

    Args:
        session: 0 <= session < 2^64.
        worker_ids: In any order; the same ones give the same ranking in every process.
    """
    key = session.to_bytes(8, "little")
    return sorted(
        worker_ids,
        key=lambda worker_id: (
            blake2b(worker_id.encode(), digest_size=8, key=key).digest(),
            worker_id,
        ),
        reverse=True,
    )
