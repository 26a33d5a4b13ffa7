"""What a request would cost on each verifier: one number, in seconds.

    cost = queue + own prefill + fetch + displacement + interference          [s]

    queue         base + s_per_token * (tokens the verifier has queued + sent there since)
    own prefill   base + s_per_token * (prompt - cached - fetched tokens)
    fetch         tokens on colder tiers * FETCH_S_PER_TOKEN, or their prefill if that is less
    displacement  DISPLACEMENT * own prefill
    interference  requests there * ROW_S * DECODE_STEPS

The first three are the time to the first token. A verifier's two prefill numbers are its own
measurement under its present load (replicas/verifier/prefill_meter.py); one that has not
measured yet is taken for the mean of those that have. Displacement is what the prefill costs
whoever comes next: of two places with the same time to first token, the one where less is
computed is better for all. Interference is what neighbours cost later on: each makes every
decode step ROW_S longer, and DECODE_STEPS of these weigh as much as the same time before the
first token.

Example: 32-token blocks, 2,000 prompt tokens, 1 ms a token, no base.
    A  holds 50 blocks, 3 requests there, 500 tokens queued: 0.5 + 0.4 + 0 + 0.1 + 0.06 = 1.06 s
    B  holds nothing, idle:                                  0 + 2.0 + 0 + 0.5 + 0      = 2.50 s
    A is chosen. With 2,000 tokens queued, A costs 2.56 s and B is: waiting then costs more
    than computing the prefix again, and from then on B holds it, too.

Where costs differ by less than TIE_RATIO and TIE_S together, the one that has more of the
prompt comes first, then the one that consistent hashing prefers. So a burst of one new prefix
meets in one place, whichever router each of its requests goes through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.types import Candidate, Prefill

DEFAULT_PREFILL: Final = Prefill(0.0, 0.001)
"""Until somebody has measured: only the proportions to the other terms hang on it."""
FETCH_S_PER_TOKEN: Final = 0.00022
"""1,280 tokens of SmolLM2 (30 MB) from LMCache's L1: 0.27-0.33 s, our measurement, CPU."""
ROW_S: Final = 0.0013
"""One more row in a decode step: 53 ms at batch 1, 73 ms at 16; our measurement, SmolLM2, CPU."""
DECODE_STEPS: Final = 16
DISPLACEMENT: Final = 0.25
"""Part of a prefill that somebody else is expected to wait for."""
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
    """

    queue_s: float
    prefill_s: float
    fetch_s: float
    displacement_s: float
    interference_s: float
    prefill_tokens: int

    @property
    def ttft_s(self) -> float:
        """Predicted time to first token."""
        return self.queue_s + self.prefill_s + self.fetch_s

    @property
    def total_s(self) -> float:
        """What is compared."""
        return self.ttft_s + self.displacement_s + self.interference_s


def cost_of(
    candidate: Candidate, prompt_tokens: int, block_tokens: int, usual: Prefill = DEFAULT_PREFILL
) -> Cost:
    """What a request costs on one verifier.

    Args:
        candidate: The verifier, as seen by this request.
        prompt_tokens: Tokens of the whole prompt.
        block_tokens: Tokens of one block.
        usual: What prefilling costs where a verifier has not measured it.
    """
    load, prefill = candidate.load, candidate.prefill or usual
    # The last token is always computed: its logits are needed.
    ready = max(candidate.device_blocks, candidate.coming_blocks)
    cached = min(ready * block_tokens, max(0, prompt_tokens - 1))
    colder_blocks = max(0, candidate.device_blocks + candidate.colder_blocks - ready)
    colder = min(colder_blocks * block_tokens, max(0, prompt_tokens - 1 - cached))
    fetch_s = colder * FETCH_S_PER_TOKEN
    if fetch_s >= colder * prefill.s_per_token:  # A fetch slower than computing is not made.
        colder, fetch_s = 0, 0.0
    left = prompt_tokens - cached - colder
    ahead = load.queued_tokens + load.sent_tokens
    neighbours = load.in_flight + load.sent_since
    prefill_s = prefill.base_s + prefill.s_per_token * left
    return Cost(
        queue_s=prefill.base_s * bool(ahead) + prefill.s_per_token * ahead,
        prefill_s=prefill_s,
        fetch_s=fetch_s,
        displacement_s=DISPLACEMENT * prefill_s,
        interference_s=neighbours * ROW_S * DECODE_STEPS,
        prefill_tokens=left,
    )


def usual_prefill(candidates: Sequence[Candidate]) -> Prefill:
    """The mean over those that have measured it, or the default."""
    known = [candidate.prefill for candidate in candidates if candidate.prefill is not None]
    if not known:
        return DEFAULT_PREFILL
    return Prefill(
        sum(prefill.base_s for prefill in known) / len(known),
        sum(prefill.s_per_token for prefill in known) / len(known),
    )
