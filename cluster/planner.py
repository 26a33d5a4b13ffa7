"""What drafting is worth, by arithmetic: how long drafts should be, and up to which load.

Pure: a profile of one verifier comes in (what a step costs, how often drafts are right), plans
with their numbers go out. The formulas are those of the paceline theory notes; acceptance and
`E[N]` as in Leviathan et al. 2023 and Chen et al. 2023. Whatever is averaged is total time over
total tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from replicas.verifier.acceptance import expected_tokens
from replicas.verifier.step_cost import StepCost, StepLoad

MOST_SEQUENCES: Final = 256
WORTH: Final = 0.01
"""Part of the time per token that drafts must save to be planned with."""


@dataclass(frozen=True)
class DraftModel:
    """What is known of a draft model.

    Attributes:
        worker_s: T_q, a step of it in a worker, seconds.
        verifier_s: T_q where it shares the verifier's hardware, seconds.
        trip_s: The way to the worker and back, seconds.
        prepared: Part of the texts that went another way than expected for which the worker had
            prepared (fan-out), 0-1.
    """

    worker_s: float
    verifier_s: float
    trip_s: float = 0.0
    prepared: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What is known of one verifier.

    Attributes:
        cost: Of a step.
        acceptance: By place in the draft, each if all before it are accepted, 0-1.
        found: Probability that there is a draft when one is asked for, 0-1.
        wait_s: What a step takes longer when drafts are asked for, seconds.
        context: KV tokens of a sequence.
        samples: Steps that the cost was learned from.
        model: The draft model of its workers; None where they have none.
    """

    cost: StepCost
    acceptance: tuple[float, ...]
    found: float = 1.0
    wait_s: float = 0.0
    context: float = 0.0
    samples: int = 0
    model: DraftModel | None = None


@dataclass(frozen=True)
class Round:
    """One step of a verifier.

    Attributes:
        tokens: Expected, of all sequences.
        seconds: Expected.
    """

    tokens: float
    seconds: float

    @property
    def token_s(self) -> float:
        """Time per token, seconds."""
        return self.seconds / self.tokens


@dataclass(frozen=True)
class Choice:
    """The best draft length at one load.

    Attributes:
        sequences: In the step.
        length: Draft tokens for each, 0: do not speculate.
        drafted: The step with such drafts.
        plain: The step without.
    """

    sequences: int
    length: int
    drafted: Round
    plain: Round

    @property
    def speedup(self) -> float:
        """Tokens a second against those without drafts."""
        return self.plain.token_s / self.drafted.token_s


@dataclass(frozen=True)
class Plan:
    """Draft lengths for one verifier.

    Attributes:
        profile: What they follow from.
        choices: At some loads, growing.
        break_even: Sequences from which on no draft pays. None: drafts pay at every load that
            was looked at.
        schedule: (largest batch, length) steps for `drafting.colocated.schedule`, which becomes
            vLLM's `num_speculative_tokens_per_batch_size`.
    """

    profile: Profile
    choices: tuple[Choice, ...]
    break_even: int | None
    schedule: tuple[tuple[int, int], ...]


def equal_acceptance(rate: float, length: int) -> float:
    """Expected tokens of a round with `length` drafts, all accepted at the same rate.

    `E[N_m] = 1 + a + ... + a^m = (1 - a^(m+1)) / (1 - a)`.
    """
    if rate >= 1.0:
        return length + 1.0
    return float((1.0 - rate ** (length + 1)) / (1.0 - rate))


def time_per_token(rounds: Iterable[Round]) -> float:
    """Seconds per token over several rounds: `sum T / sum N`, never a mean of ratios."""
    rounds = tuple(rounds)
    return sum(r.seconds for r in rounds) / sum(r.tokens for r in rounds)


def drafting_budget_s(tokens: float, plain_s: float) -> float:
    """What drafting may take in a round before it is in vain: `(E[N] - 1) * T_plain`."""
    return (tokens - 1.0) * plain_s


def payback_tokens(preparation_s: float, saved_s: float) -> float:
    """Tokens after which a preparation has paid, where each token then saves `saved_s`."""
    return preparation_s / saved_s


def serial_round_s(drafts: int, draft_s: float, verify_s: float) -> float:
    """A round whose drafts are made one after the other."""
    return drafts * draft_s + verify_s


def parallel_round_s(draft_s: float, verify_s: float) -> float:
    """A round whose drafts are all made in one pass."""
    return draft_s + verify_s


def combined_speedup(
    tokens: float, drafts: int, cost_ratio: float, target: float = 1.0, draft: float = 1.0
) -> float:
    """Speculation and quantization together: `E[N] / (1/q_t + K / (c * q_d))`.

    Args:
        tokens: E[N] of a round.
        drafts: K, draft tokens of a round, made one after the other.
        cost_ratio: c = T_target / T_draft, both unquantized.
        target: q_t, speed-up of the target by quantization.
        draft: q_d, that of the draft model.
    """
    return tokens / (1.0 / target + drafts / (cost_ratio * draft))


def round_of(profile: Profile, sequences: int, length: int) -> Round:
    """A step in which each of so many sequences has a draft of so many tokens."""
    rates = profile.acceptance[:length]
    tokens = 1.0 + profile.found * (expected_tokens(rates) - 1.0)
    drafts = profile.found * length * sequences
    load = StepLoad(
        sequences + drafts, sequences * profile.context, drafts * profile.context, sequences
    )
    return Round(sequences * tokens, profile.cost.seconds(load) + profile.wait_s * (length > 0))


def best_length(profile: Profile, sequences: int, longest: int | None = None) -> Choice:
    """The draft length with the least time per token; of equal ones the shortest.

    Args:
        profile: Of the verifier.
        sequences: In the step.
        longest: Draft tokens at most. None: as many as the profile has places.
    """
    plain = round_of(profile, sequences, 0)
    most = len(profile.acceptance) if longest is None else min(longest, len(profile.acceptance))
    length, best = 0, plain
    for tried in range(1, most + 1):
        drafted = round_of(profile, sequences, tried)
        if drafted.token_s < best.token_s and drafted.token_s <= (1 - WORTH) * plain.token_s:
            length, best = tried, drafted
    return Choice(sequences, length, best, plain)


def break_even(profile: Profile, longest: int, most: int = MOST_SEQUENCES) -> int | None:
    """The number of sequences from which on, up to `most`, no draft pays."""
    for sequences in range(most, 0, -1):
        if best_length(profile, sequences, longest).length:
            return sequences + 1 if sequences < most else None
    return 1


def schedule(
    profile: Profile, longest: int, most: int = MOST_SEQUENCES
) -> tuple[tuple[int, int], ...]:
    """(largest batch, length) steps; lengths never rise with the batch.

    Execution shapes may make a longer draft pay again at some larger batch; a schedule that
    went up and down would follow the noise of the profile more than its steps.
    """
    steps: list[tuple[int, int]] = []
    length = longest
    for sequences in range(1, most + 1):
        length = best_length(profile, sequences, length).length
        if steps and steps[-1][1] == length:
            steps.pop()
        steps.append((sequences, length))
    return tuple(steps)


def plan(profile: Profile, longest: int, loads: Sequence[int], most: int = MOST_SEQUENCES) -> Plan:
    """Lengths for one verifier.

    Args:
        profile: Of it.
        longest: Draft tokens at most.
        loads: Sequences a step at which choices are told.
        most: Sequences up to which it is looked for the break-even and the schedule.
    """
    return Plan(
        profile,
        tuple(best_length(profile, sequences, longest) for sequences in loads),
        break_even(profile, longest, most),
        schedule(profile, longest, most),
    )
