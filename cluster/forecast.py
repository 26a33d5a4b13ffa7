"""How long requests would wait on so many verifiers, and how many are needed: arithmetic only.

A verifier's engine runs steps. In a second it has to make `rate * output / E[N]` sequence steps
and to compute `rate * prompt` prompt tokens; each costs what was measured (`Work`). What is left
of the second goes into the fixed part of steps, so with u the part of time that the work itself
takes, `u = rate (sequence_s * output / E[N] + token_s * prompt)`,

    step time   T = step_s / (1 - u)
    TPOT          = T / E[N] + z sigma / output
    sequences   B = rate * (output / E[N]) * T  Little's law
    a prefill   s = token_s * prompt + step_s + sequence_s * B
    TTFT          = s + wait,  P(wait > t) = rho exp(-t / W),  W = s (1 + c^2) / (2 (1 - rho))

with rho = rate * s, c the spread of prompt lengths. While an answer of `A = output / E[N] * T`
seconds runs, prompts of others come between its steps; how many is chance, a compound Poisson sum
with `sigma = token_s * prompt * sqrt(rate (1 + c^2) A) / (1 - u)`, of which the asked part of the
answers keeps within z standard deviations. W is that of the Pollaczek-Khinchine formula;
for c = 1 the mean wait is rho s / (1 - rho), the M/M/1 rule of the paceline theory notes. A pool
that accepts more (E[N]) makes fewer sequence steps for the same answers, and so needs fewer
verifiers. All rates here are of one verifier, and all numbers of verifiers assume that the router
spreads requests evenly.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

Limit = Literal["ttft", "tpot", "utilization", "kv", "sequences", "nothing"]
KV_USAGE: Final = 0.9
"""Part of the KV cache that may be planned with; beyond, vLLM preempts."""


@dataclass(frozen=True)
class Work:
    """What a verifier's steps cost, as measured.

    Attributes:
        step_s: Of a step, whatever it does, seconds.
        sequence_s: Of one sequence in a step, its draft tokens included.
        token_s: Of one prompt token that is computed.
        tokens_per_step: E[N], tokens that a sequence gets in a step; 1 without drafts.
        kv_tokens: Tokens that fit in the KV cache; 0 where it is not known.
        max_sequences: Most sequences in a step; 0 where it is not known.
    """

    step_s: float
    sequence_s: float
    token_s: float
    tokens_per_step: float = 1.0
    kv_tokens: float = 0.0
    max_sequences: float = 0.0


@dataclass(frozen=True)
class Demand:
    """What clients ask of the whole cluster.

    Attributes:
        rate: Requests a second.
        prompt: Mean prompt tokens of a request that no cache had.
        spread: Variance of prompt tokens by the square of their mean, c^2.
        output: Mean tokens of an answer.
        context: Mean KV tokens of a running sequence.
        backlog: Prompt tokens that wait, of the whole cluster.
    """

    rate: float
    prompt: float
    output: float
    spread: float = 1.0
    context: float = 0.0
    backlog: float = 0.0

    def at(self, rate: float) -> "Demand":
        """The same at another rate."""
        return replace(self, rate=rate)

    def left_after(self, seconds: float, work: "Work", verifiers: int) -> "Demand":
        """With what is left of the backlog then, if so many verifiers have worked on it."""
        sequence_steps = self.output / work.tokens_per_step
        busy = self.rate * (work.sequence_s * sequence_steps + work.token_s * self.prompt)
        spare_s = max(0.0, verifiers - busy) * seconds
        left = self.backlog - spare_s / work.token_s if work.token_s else 0.0
        return replace(self, backlog=max(0.0, left))


@dataclass(frozen=True)
class Targets:
    """What requests shall meet, by the config.

    Attributes:
        ttft_s: Time to the first token, seconds.
        tpot_s: Time per token after it.
        attainment: Part of the requests that shall meet them, 0-1.
        utilization: Part of a verifier's time that may be planned with, 0-1.
    """

    ttft_s: float
    tpot_s: float
    attainment: float = 0.95
    utilization: float = 0.8


@dataclass(frozen=True)
class Prediction:
    """What to expect of each verifier.

    Attributes:
        utilization: Part of its time that work takes, 0-1 and above.
        sequences: Mean sequences in a step.
        tpot_s: Time per token that the asked part of requests keeps, seconds; infinite where it
            does not keep up.
        ttft_s: Time to the first token that the asked part keeps.
        kv_usage: Part of its KV cache, 0-1 and above; 0 where its size is not known.
    """

    utilization: float
    sequences: float
    tpot_s: float
    ttft_s: float
    kv_usage: float


@dataclass(frozen=True)
class Need:
    """How many verifiers are needed.

    Attributes:
        verifiers: As many.
        limit: What one fewer would break; `nothing` where the fewest are enough.
        prediction: With as many.
    """

    verifiers: int
    limit: Limit
    prediction: Prediction


def mean_wait_s(rate: float, service_s: float, spread: float = 1.0) -> float:
    """Mean wait of an M/G/1 queue, seconds (Pollaczek-Khinchine); infinite from rho = 1 on."""
    rho = rate * service_s
    if rho >= 1.0:
        return math.inf
    return rho * service_s * (1.0 + spread) / (2.0 * (1.0 - rho))


def wait_quantile_s(rate: float, service_s: float, part: float, spread: float = 1.0) -> float:
    """The wait that `part` of the requests stay below, seconds: an exponential tail.

    Exact for M/M/1, where `P(W > t) = rho exp(-t (1 - rho) / s)`.
    """
    rho = rate * service_s
    if rho >= 1.0:
        return math.inf
    if rho <= 1.0 - part:
        return 0.0
    scale_s = service_s * (1.0 + spread) / (2.0 * (1.0 - rho))
    return scale_s * math.log(rho / (1.0 - part))


def predict(work: Work, demand: Demand, verifiers: int, attainment: float = 0.95) -> Prediction:
    """What requests meet when `demand` is spread over so many verifiers."""
    rate = demand.rate / verifiers
    sequence_steps = demand.output / max(work.tokens_per_step, 1.0)
    used = rate * (work.sequence_s * sequence_steps + work.token_s * demand.prompt)
    if used >= 1.0:
        return Prediction(used, math.inf, math.inf, math.inf, math.inf)
    step_s = work.step_s / (1.0 - used)
    sequences = rate * sequence_steps * step_s
    prompt_s = work.token_s * demand.prompt
    prefill_s = prompt_s + work.step_s + work.sequence_s * sequences
    backlog_s = work.token_s * demand.backlog / verifiers / (1.0 - used)
    # Half of those that may miss a target may miss each.
    part = (1.0 + attainment) / 2.0
    # A longer prompt than the mean takes longer itself, too.
    own_s = prefill_s + prompt_s * math.sqrt(demand.spread)
    wait_s = wait_quantile_s(rate, prefill_s, part, demand.spread)
    answer_s = sequence_steps * step_s
    others_s = prompt_s * math.sqrt(rate * (1.0 + demand.spread) * answer_s) / (1.0 - used)
    late_s = NormalDist().inv_cdf(part) * others_s
    return Prediction(
        utilization=used,
        sequences=sequences,
        tpot_s=(answer_s + late_s) / demand.output if demand.output else step_s,
        ttft_s=own_s + wait_s + backlog_s,
        kv_usage=sequences * demand.context / work.kv_tokens if work.kv_tokens else 0.0,
    )


def broken(prediction: Prediction, work: Work, targets: Targets) -> Limit:
    """What a prediction does not keep; `nothing` where all is kept."""
    if prediction.utilization > targets.utilization:
        return "utilization"
    if prediction.tpot_s > targets.tpot_s:
        return "tpot"
    if prediction.kv_usage > KV_USAGE:
        return "kv"
    if work.max_sequences and prediction.sequences > KV_USAGE * work.max_sequences:
        return "sequences"
    return "ttft" if prediction.ttft_s > targets.ttft_s else "nothing"


def verifiers_needed(work: Work, demand: Demand, targets: Targets, least: int, most: int) -> Need:
    """The fewest verifiers, from `least` to `most`, that keep the targets.

    What no number of verifiers would keep, such as the time of one step or of one prefill, is
    not a reason for more.
    """
    alone = predict(work, demand.at(0.0), most, targets.attainment)
    possible = Targets(
        max(targets.ttft_s, 1.5 * alone.ttft_s),
        max(targets.tpot_s, 1.25 * alone.tpot_s),
        targets.attainment,
        targets.utilization,
    )
    limit: Limit = "nothing"
    for verifiers in range(least, most + 1):
        prediction = predict(work, demand, verifiers, targets.attainment)
        found = broken(prediction, work, possible)
        if found == "nothing":
            return Need(verifiers, limit, prediction)
        limit = found
    return Need(most, limit, prediction)
