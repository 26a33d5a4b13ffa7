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

Requests that can wait stand behind all others in an engine's queue, whose prefill it does not
break off. With rho' the part of rho that the others make, those wait with
`W = s (1 + c^2) / (2 (1 - rho'))`, and they with `W = s (1 + c^2) / (2 (1 - rho') (1 - rho))`
(Cobham 1954): work that can wait costs the others half a prefill at most, and may come late itself.
All share the steps, so while others are there their time per token counts.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

from cluster.queueing import spread_of, wait_quantile_s

Limit = Literal["ttft", "batch_ttft", "tpot", "utilization", "kv", "sequences", "nothing"]
KV_USAGE: Final = 0.9
"""Part of the KV cache that may be planned with; beyond, vLLM preempts."""
NOBODY: Final = 0.01
"""Part of the requests below which a class is not there."""
ALONE: Final = 1e-9
"""Requests a second that never meet."""


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
        batch: The part of all this that can wait; its `context` is not looked at. None: nothing.
    """

    rate: float
    prompt: float
    output: float
    spread: float = 1.0
    context: float = 0.0
    backlog: float = 0.0
    batch: "Demand | None" = None

    def at(self, rate: float) -> "Demand":
        """The same at another rate."""
        if self.batch is None:
            return replace(self, rate=rate)
        part = self.batch.rate / self.rate if self.rate else 0.0
        return replace(self, rate=rate, batch=self.batch.at(part * rate))

    @property
    def urgent(self) -> "Demand":
        """The part that can't wait."""
        batch = self.batch
        if batch is None:
            return self
        rate = max(0.0, self.rate - batch.rate)
        if rate <= NOBODY * self.rate:
            return Demand(0.0, 0.0, 0.0)

        def rest(of_all: float, of_batch: float) -> float:
            return max(0.0, self.rate * of_all - batch.rate * of_batch) / rate

        prompt = rest(self.prompt, batch.prompt)
        squares = rest(self.prompt**2 * (1.0 + self.spread), batch.prompt**2 * (1.0 + batch.spread))
        return Demand(
            rate=rate,
            prompt=prompt,
            output=rest(self.output, batch.output),
            spread=spread_of(prompt, squares),
            backlog=max(0.0, self.backlog - batch.backlog),
        )

    def left_after(self, seconds: float, work: "Work", verifiers: int) -> "Demand":
        """With what is left of the backlog then, if so many verifiers have worked on it."""
        sequence_steps = self.output / work.tokens_per_step
        busy = self.rate * (work.sequence_s * sequence_steps + work.token_s * self.prompt)
        spare_s = max(0.0, verifiers - busy) * seconds
        left = max(0.0, self.backlog - spare_s / work.token_s) if work.token_s else 0.0
        batch = self.batch
        if batch is not None:  # is worked on last
            batch = replace(batch, backlog=min(batch.backlog, left))
        return replace(self, backlog=left, batch=batch)


@dataclass(frozen=True)
class Targets:
    """What requests shall meet, by the config.

    Attributes:
        ttft_s: Time to the first token, seconds.
        tpot_s: Time per token after it.
        attainment: Part of the requests that shall meet them, 0-1.
        utilization: Part of a verifier's time that may be planned with, 0-1.
        batch_ttft_s: As `ttft_s`, of requests that can wait.
        batch_tpot_s: As `tpot_s`, where nobody else asks.
    """

    ttft_s: float
    tpot_s: float
    attainment: float = 0.95
    utilization: float = 0.8
    batch_ttft_s: float = math.inf
    batch_tpot_s: float = math.inf

    def of(self, demand: Demand) -> "Targets":
        """Those that somebody's requests are held to."""
        if demand.batch is None:
            return replace(self, batch_ttft_s=math.inf)
        if demand.urgent.rate:
            return self
        return replace(
            self, ttft_s=self.batch_ttft_s, tpot_s=self.batch_tpot_s, batch_ttft_s=math.inf
        )


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
        batch_ttft_s: As `ttft_s`, of requests that can wait, where there are others beside them,
            of which `ttft_s` is then; else 0.
    """

    utilization: float
    sequences: float
    tpot_s: float
    ttft_s: float
    kv_usage: float
    batch_ttft_s: float = 0.0


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


def predict(work: Work, demand: Demand, verifiers: int, attainment: float = 0.95) -> Prediction:
    """What requests meet when `demand` is spread over so many verifiers."""
    rate = demand.rate / verifiers
    sequence_steps = demand.output / max(work.tokens_per_step, 1.0)
    used = rate * (work.sequence_s * sequence_steps + work.token_s * demand.prompt)
    if used >= 1.0:
        return Prediction(used, math.inf, math.inf, math.inf, math.inf, math.inf)
    step_s = work.step_s / (1.0 - used)
    sequences = rate * sequence_steps * step_s
    # Half of those that may miss a target may miss each.
    part = (1.0 + attainment) / 2.0
    around_s = work.step_s + work.sequence_s * sequences
    prompt_s = work.token_s * demand.prompt
    rho = rate * (prompt_s + around_s)
    left_s = (prompt_s + around_s) * (1.0 + demand.spread) / 2.0

    def first_token_s(of: Demand, room: float) -> float:
        # A longer prompt than the mean takes longer itself, too.
        own_s = around_s + work.token_s * of.prompt * (1.0 + math.sqrt(of.spread))
        backlog_s = work.token_s * of.backlog / verifiers / (1.0 - used)
        return own_s + wait_quantile_s(rho, left_s, room, part) + backlog_s

    ttft_s, batch_ttft_s = first_token_s(demand, 1.0 - rho), 0.0
    urgent = demand.urgent
    if demand.batch is not None and urgent.rate:
        room = 1.0 - urgent.rate / verifiers * (work.token_s * urgent.prompt + around_s)
        ttft_s = first_token_s(urgent, room)
        waits = replace(demand.batch, backlog=demand.backlog)
        batch_ttft_s = first_token_s(waits, room * (1.0 - rho) if room > 0.0 else 0.0)
    answer_s = sequence_steps * step_s
    others_s = prompt_s * math.sqrt(rate * (1.0 + demand.spread) * answer_s) / (1.0 - used)
    late_s = NormalDist().inv_cdf(part) * others_s
    return Prediction(
        utilization=used,
        sequences=sequences,
        tpot_s=(answer_s + late_s) / demand.output if demand.output else step_s,
        ttft_s=ttft_s,
        kv_usage=sequences * demand.context / work.kv_tokens if work.kv_tokens else 0.0,
        batch_ttft_s=batch_ttft_s,
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
    if prediction.ttft_s > targets.ttft_s:
        return "ttft"
    return "batch_ttft" if prediction.batch_ttft_s > targets.batch_ttft_s else "nothing"


def verifiers_needed(work: Work, demand: Demand, targets: Targets, least: int, most: int) -> Need:
    """The fewest verifiers, from `least` to `most`, that keep the targets.

    What no number of verifiers would keep, such as the time of one step or of one prefill, is
    not a reason for more.
    """
    alone = predict(work, demand.at(ALONE), most, targets.attainment)
    asked = targets.of(demand)
    possible = replace(
        asked,
        ttft_s=max(asked.ttft_s, 1.5 * alone.ttft_s),
        tpot_s=max(asked.tpot_s, 1.25 * alone.tpot_s),
        batch_ttft_s=max(asked.batch_ttft_s, 1.5 * alone.batch_ttft_s),
    )
    limit: Limit = "nothing"
    for verifiers in range(least, most + 1):
        prediction = predict(work, demand, verifiers, targets.attainment)
        found = broken(prediction, work, possible)
        if found == "nothing":
            return Need(verifiers, limit, prediction)
        limit = found
    return Need(most, limit, prediction)
