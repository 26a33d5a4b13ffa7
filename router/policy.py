"""Routing decisions, each a pure function of what is known.

`least_loaded` looks at requests in flight only; `prefix_aware` predicts what a request would
cost on each verifier (`router/cost.py`) and sends it where that is least.
"""

import hashlib
from collections.abc import Sequence

from router.cost import TIE_RATIO, TIE_S, Cost, cost_of, usual_prefill, usually_waiting
from router.types import Candidate, Load, Ranking


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


def prefix_aware(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    block_tokens: int,
    wait_weight: float = 1.0,
) -> tuple[Ranking, Cost | None]:
    """Ranks verifiers by what a request would cost on each, least first.

    Those whose cost is within TIE_RATIO and TIE_S of the least are ranked by how much of the
    prompt they hold or will hold, then by consistent hashing.

    Args:
        candidates: One entry a verifier, in any order.
        prompt_tokens: Tokens of the whole prompt.
        block_tokens: Tokens of one block.
        wait_weight: Of the request's class, above 0, at most 1.

    Returns:
        All of them, ranked, and the cost on the first; None where there is nobody.
    """
    if not candidates:
        return Ranking((), "no verifier is ready"), None
    usual, waiting = usual_prefill(candidates), usually_waiting(candidates)
    costs = [
        (cost_of(candidate, prompt_tokens, block_tokens, usual, waiting, wait_weight), candidate)
        for candidate in candidates
    ]
    least = min(cost.total_s for cost, _ in costs)
    limit = least * (1 + TIE_RATIO) + TIE_S

    def order(entry: tuple[Cost, Candidate]) -> tuple[bool, float, float, str]:
        cost, candidate = entry
        is_tie = cost.total_s <= limit
        held = max(candidate.device_blocks + candidate.colder_blocks, candidate.coming_blocks)
        return (
            not is_tie,
            -held if is_tie else cost.total_s,
            -candidate.affinity,
            candidate.load.replica_id,
        )

    costs.sort(key=order)
    cost, best = costs[0]
    return (
        Ranking(
            tuple(candidate.load.replica_id for _, candidate in costs),
            f"{cost.total_s:.3f} s: queue {cost.queue_s:.3f}, prefill {cost.prefill_s:.3f} of "
            f"{cost.prefill_tokens} tokens, fetch {cost.fetch_s:.3f}, interference "
            f"{cost.interference_s:.3f}; holds {best.device_blocks}+{best.colder_blocks} blocks, "
            f"{best.coming_blocks} coming",
        ),
        cost,
    )


def affinity(replica_id: str, key: int) -> float:
    """Rendezvous hashing: which verifier a prompt's beginning prefers, 0-1.

    Every router computes the same, and a verifier that comes or goes moves only the prompts
    that prefer it.

    Args:
        replica_id: Serve's id of the replica.
        key: Hash of the prompt's beginning.
    """
    digest = hashlib.blake2b(
        replica_id.encode(), key=(key & (1 << 64) - 1).to_bytes(8, "little"), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") / 2**64
