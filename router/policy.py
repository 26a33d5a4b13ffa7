"""Routing decisions, each a pure function of what is known.

`least_loaded` is the only policy so far; a policy that also knows whose cache is
warm takes the same place.
"""

from collections.abc import Sequence

from router.types import Load, Ranking


def least_loaded(loads: Sequence[Load]) -> Ranking:
    """Ranks verifiers by requests in flight, fewest first.

    In flight is what the verifier reported plus what this router sent it since,
    so that a burst between two reports does not pile onto one verifier. Equal
    loads go to the one picked longest ago, which makes an idle cluster take turns.

    Args:
        loads: One entry a verifier, in any order.

    Returns:
        All of them, ranked.
    """
    ranked = sorted(
        loads,
        key=lambda load: (load.in_flight + load.sent_since, load.last_pick, load.replica_id),
    )
    if not ranked:
        return Ranking((), "no verifier is ready")
    best = ranked[0]
    return Ranking(
        tuple(load.replica_id for load in ranked),
        f"fewest in flight: {best.in_flight} reported, {best.sent_since} sent since",
    )
