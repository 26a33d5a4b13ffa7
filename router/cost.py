"""What a request would cost on each verifier: one number, in seconds.

    cost = queue + own prefill + fetch + displacement + interference          [s]

    queue         base + s_per_token * (tokens the verifier has queued + sent there since)
    own prefill   base + s_per_token * (prompt - cached - fetched tokens)
    fetch         for each colder tier base + s_per_token * its tokens, or their prefill if that
                  is less
    displacement  own prefill * (DISPLACEMENT + requests that wait there, or on average if less)
    interference  requests there * ROW_S * DECODE_STEPS

The first three are the time to the first token. A verifier's two prefill numbers are its own
measurement under its present load (replicas/verifier/prefill_meter.py); one that has not
measured yet is taken for the mean of those that have. Displacement is what the prefill costs
whoever comes next: of two places with the same time to first token, the one where less is
computed is better for all. Requests that come while others wait will wait for ours, too, and
there are as many of these as wait now (Little 1961). So the more is waiting, the less is computed
twice: a cluster near its limit would else spread its prefixes, compute the more for it, and go
over the limit. Interference is what neighbours cost later on: each makes every
decode step ROW_S longer, and DECODE_STEPS of these weigh as much as the same time before the
first token.

With `batch_weight` the first three count less for requests that can wait.

Example: 32-token blocks, 2,000 prompt tokens, 1 ms a token, no base.
    A  holds 50 blocks, 3 requests there, one of them waits, with 500 tokens:
       0.5 + 0.4 + 0 + 0.4 * (0.25 + 0.5) + 0.06 = 1.26 s
    B  holds nothing, idle:
       0 + 2.0 + 0 + 2.0 * 0.25 + 0 = 2.50 s
    A is chosen. With three waiting, with 1,500 tokens, A costs 2.66 s and B is: waiting then costs
    more than computing the prefix again, and from then on B holds it, too.

Where costs differ by less than TIE_RATIO and TIE_S together, the one that has more of the
prompt comes first, then the one that consistent hashing prefers. So a burst of one new prefix
meets in one place, whichever router each of its requests goes through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvstore.kv_messages import FetchCosts
from router.types import Candidate, Load, Prefill

DEFAULT_PREFILL: Final = Prefill(0.0, 0.001)
"""Until somebody has measured: only the proportions to the other terms hang on it."""
DEFAULT_FETCH: Final = FetchCosts(0.0, 0.00022, 0.0, 0.00025)
"""Until a verifier has measured. 1,280 tokens of SmolLM2 (30 MB): 0.27-0.33 s from LMCache's
memory, 41 ms more from Redis; our measurement, CPU."""
ROW_S: Final = 0.0013
"""One more row in a decode step: 53 ms at batch 1, 73 ms at 16; our measurement, SmolLM2, CPU."""
DECODE_STEPS: Final = 16
DISPLACEMENT: Final = 0.25
"""Requests that are expected to wait for a prefill though nobody waits now."""
TIE_RATIO: Final = 0.05
TIE_S: Final = 0.01


@dataclass(frozen=True)
class Cost:
    """Of one request on one verifier, seconds.

    Attributes:
        queue_s: Until the verifier gets to it.
        prefill_s: Computing what no cache has.
        fetch_s: Bringing blocks from colder tiers.
        displacement_s: What its prefill costs others.
        interference_s: What its neighbours cost it later on.
        prefill_tokens: That are computed.
        wait_weight: What a second before its first token counts for, against others' seconds.
    """

    queue_s: float
    prefill_s: float
    fetch_s: float
    displacement_s: float
    interference_s: float
    prefill_tokens: int
    wait_weight: float = 1.0

    @property
    def ttft_s(self) -> float:
        """Predicted time to first token."""
        return self.queue_s + self.prefill_s + self.fetch_s

    @property
    def total_s(self) -> float:
        """What is compared."""
        return self.wait_weight * self.ttft_s + self.displacement_s + self.interference_s


def cost_of(
    candidate: Candidate,
    prompt_tokens: int,
    block_tokens: int,
    usual: Prefill = DEFAULT_PREFILL,
    usually_waiting: float = 0.0,
    wait_weight: float = 1.0,
) -> Cost:
    """What a request costs on one verifier.

    Args:
        candidate: The verifier, as seen by this request.
        prompt_tokens: Tokens of the whole prompt.
        block_tokens: Tokens of one block.
        usual: What prefilling costs where a verifier has not measured it.
        usually_waiting: Requests that wait at a verifier, on average.
        wait_weight: Of the request's class, above 0, at most 1.
    """
    load, prefill = candidate.load, candidate.prefill or usual
    # The last token is always computed: its logits are needed.
    ready = max(candidate.device_blocks, candidate.coming_blocks)
    cached = min(ready * block_tokens, max(0, prompt_tokens - 1))
    total = candidate.device_blocks + candidate.colder_blocks
    rest = max(0, prompt_tokens - 1 - cached)
    near = min(max(0, total - candidate.storage_blocks - ready) * block_tokens, rest)
    far = min(max(0, total - ready) * block_tokens, rest) - near
    fetched, fetch_s = _fetch(near, far, candidate.fetch or DEFAULT_FETCH, prefill.s_per_token)
    left = prompt_tokens - cached - fetched
    ahead = load.queued_tokens + load.sent_tokens
    neighbours = load.in_flight + load.sent_since
    prefill_s = prefill.base_s + prefill.s_per_token * left
    return Cost(
        queue_s=prefill.base_s * bool(ahead) + prefill.s_per_token * ahead,
        prefill_s=prefill_s,
        fetch_s=fetch_s,
        displacement_s=_displaced(load, usually_waiting) * prefill_s,
        interference_s=neighbours * ROW_S * DECODE_STEPS,
        prefill_tokens=left,
        wait_weight=wait_weight,
    )


def _fetch(near: int, far: int, costs: FetchCosts, s_per_token: float) -> tuple[int, float]:
    """Tokens that are fetched, and the time it takes; what is computed sooner is not fetched.

    Args:
        near: Tokens in the node's memory.
        far: Tokens behind these, in what all nodes share.
        costs: Of fetching.
        s_per_token: Of computing one.
    """
    near_s = costs.host_base_s + costs.host_s_per_token * near if near else 0.0
    # Where nobody has measured storage yet, memory stands for it.
    far_base_s, far_rate = costs.storage_base_s, costs.storage_s_per_token
    if not far_rate:
        far_base_s, far_rate = costs.host_base_s, costs.host_s_per_token
    far_s = far_base_s + far_rate * far if far else 0.0
    ways = ((0, 0.0), (near, near_s), (near + far, near_s + far_s))
    return min(ways, key=lambda way: way[1] - way[0] * s_per_token)


def usual_prefill(candidates: Sequence[Candidate]) -> Prefill:
    """The mean over those that have measured it, or the default."""
    known = [candidate.prefill for candidate in candidates if candidate.prefill is not None]
    if not known:
        return DEFAULT_PREFILL
    return Prefill(
        sum(prefill.base_s for prefill in known) / len(known),
        sum(prefill.s_per_token for prefill in known) / len(known),
    )


def usually_waiting(candidates: Sequence[Candidate]) -> float:
    """Requests that wait at a verifier, on average, those sent since its report included."""
    loads = [candidate.load for candidate in candidates]
    return sum(load.waiting + load.sent_since for load in loads) / len(loads)


def _displaced(load: Load, usually_waiting: float) -> float:
    """How many requests will wait for a prefill that is added to this load."""
    return DISPLACEMENT + min(load.waiting + load.sent_since, usually_waiting)
