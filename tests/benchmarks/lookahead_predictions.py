"""What the planner's arithmetic says of the arms of `lookahead.py`, beside what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from engine_process import Run
from lookahead_parts import WIDE

from cluster.model_plans import AHEAD, IN_VERIFIER, NONE, SPLIT, model_round
from cluster.planner import DraftModel, Profile, Round
from replicas.verifier.acceptance import expected_tokens
from replicas.verifier.step_cost import StepCost

WORST_RATE, WORST_TOKENS = 0.15, 0.05
WAYS = {
    "colocated": IN_VERIFIER,
    f"colocated{WIDE}": IN_VERIFIER,
    "split": SPLIT,
    "ahead": AHEAD,
}


@dataclass(frozen=True)
class Rounds:
    """What became of drafts that were as long as can be.

    Attributes:
        longest: Their tokens.
        accepted: By prompt, of each draft.
    """

    longest: int
    accepted: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, run: Run, prompts: Sequence[Sequence[int]], longest: int) -> Self:
        """From what was proposed in a greedy run, and what was answered."""
        by_prompt = []
        for prompt, answers, proposals in zip(prompts, run.tokens, run.proposals, strict=True):
            accepted = []
            for proposal in proposals:
                text = answers[0][proposal.length - len(prompt) :]
                if len(proposal.draft) == longest <= len(text):
                    agree = [a == b for a, b in zip(proposal.draft, text, strict=False)]
                    accepted.append([*agree, False].index(False))
            by_prompt.append(tuple(accepted))
        return cls(longest, tuple(by_prompt))

    @property
    def acceptance(self) -> tuple[float, ...]:
        """a_i: by place, of those whose places before were accepted."""
        every = [accepted for its in self.accepted for accepted in its]
        reached = [
            sum(accepted >= place for accepted in every) for place in range(self.longest + 1)
        ]
        return tuple(after / before for before, after in pairwise(reached) if before)

    def tokens(self, length: int) -> float:
        """Of a round with drafts of so many tokens, on average."""
        every = [1 + min(accepted, length) for its in self.accepted for accepted in its]
        return statistics.mean(every)

    def halves(self) -> tuple["Rounds", "Rounds"]:
        """Of every other prompt, and of the rest."""
        return Rounds(self.longest, self.accepted[::2]), Rounds(self.longest, self.accepted[1::2])


@dataclass(frozen=True)
class Measured:
    """One cell.

    Attributes:
        batch: Sequences.
        rates: Tokens/s by arm, medians.
        step_tokens: Of a step and sequence by arm, means; fewer where some answers ended sooner.
        verify_s: Time of a step without waiting, by draft length; 0 for no drafts.
        draft_s: T_q in a worker, by arm; prepared ways, which ride along, make it longer.
        trip_s: RTT.
        acceptance: a_i.
        prepared: Part of the texts that went another way for which the worker was prepared.
        draft_part: T_q in the verifier, as a part of that in a worker.
    """

    batch: int
    rates: Mapping[str, float]
    step_tokens: Mapping[str, float]
    verify_s: Mapping[int, float]
    draft_s: Mapping[str, float]
    trip_s: float
    acceptance: tuple[float, ...]
    prepared: float
    draft_part: float = 1.0

    def on_both(self, plain_s: float) -> Self:
        """The verifier on both cores: all steps, the draft's too, faster by as much as one of its
        own without drafts, which takes `plain_s`.
        """
        faster = plain_s / self.verify_s[0]
        verify_s = {length: faster * taken for length, taken in self.verify_s.items()}
        return replace(self, verify_s=verify_s, draft_part=faster)

    def step_s(self, arm: str) -> float:
        """Time of an arm's step, waiting included."""
        return self.batch * self.step_tokens[arm] / self.rates[arm]


def predicted(measured: Measured, arm: str) -> Round:
    """A step of an arm, by T_p, T_q, a, RTT and how often fan-out was right alone."""
    family, _, words = arm.partition(" ")
    length = int(words or 0)
    plain_s, batch = measured.verify_s[0], measured.batch
    knots = tuple((batch * (k + 1), s - plain_s) for k, s in sorted(measured.verify_s.items()))
    profile = Profile(StepCost(plain_s, 0.0, knots=knots), measured.acceptance)
    draft_s = measured.draft_s.get(arm, measured.draft_s[f"split {length}"]) if length else 0.0
    model = DraftModel(draft_s, measured.draft_part * draft_s, measured.trip_s, measured.prepared)
    way = WAYS.get(family, NONE)
    return model_round(profile, model, way, batch, length)


def words_on(cell: str, measured: Measured, arms: Sequence[str]) -> list[str]:
    """Predictions beside results, and their errors."""
    rounds = {arm: predicted(measured, arm) for arm in arms}
    errors = {arm: 1 / rounds[arm].token_s / measured.rates[arm] - 1 for arm in arms}
    of_steps = [abs(rounds[arm].seconds / measured.step_s(arm) - 1) for arm in arms]
    steps_within = sum(error <= WORST_RATE for error in of_steps)
    worst = max(errors, key=lambda arm: abs(errors[arm]))
    within = sum(abs(error) <= WORST_RATE for error in errors.values())
    return [
        f"{cell}: predicted tokens/s within {WORST_RATE:.0%} for {within} of {len(arms)} arms; "
        f"median error {statistics.median(map(abs, errors.values())):.0%}, worst "
        f"{errors[worst]:+.0%} ({worst})",
        f"{cell}: " + ", ".join(f"{arm} {error:+.0%}" for arm, error in errors.items()),
        f"{cell}: of time a step, without what steps had fewer sequences for, for {steps_within}; "
        f"median error {statistics.median(of_steps):.0%}, worst {max(of_steps):.0%}",
    ]


def words_on_winners(own: Measured, wide: Measured, arms: Sequence[str]) -> str:
    """Running ahead on a core of its own against the same two cores for the verifier, by length."""
    measured, foreseen = [], []
    for arm in arms:
        ahead = f"ahead {arm.partition(' ')[2]}"
        measured.append(own.rates[ahead] / wide.rates[arm])
        foreseen.append(predicted(wide, arm).token_s / predicted(own, ahead).token_s)
    alike = sum((a >= 1) == (b >= 1) for a, b in zip(measured, foreseen, strict=True))
    return (
        f"ahead / colocated{WIDE}, by length: {' '.join(f'{r:.2f}' for r in measured)}; "
        f"foreseen {' '.join(f'{r:.2f}' for r in foreseen)}; the same wins at {alike} "
        f"of {len(arms)} lengths"
    )


def words_on_rounds(name: str, rounds: Rounds, length: int) -> list[str]:
    """How well one half of the prompts foretells the other."""
    first, second = rounds.halves()
    places = " ".join(f"{rate:.2f}" for rate in rounds.acceptance)
    count = sum(map(len, rounds.accepted))
    told = [f"{name}: a_i {places}, of {count} drafts of {rounds.longest} tokens"]
    for tokens in (length, rounds.longest):
        foreseen, real = expected_tokens(first.acceptance[:tokens]), second.tokens(tokens)
        error = foreseen / real - 1
        word = "met" if abs(error) <= WORST_TOKENS else "missed"
        told.append(
            f"{name}: a_i of one half of the prompts give E[N] {foreseen:.2f} for drafts of "
            f"{tokens} in the other, measured {real:.2f}, {error:+.1%}, within "
            f"{WORST_TOKENS:.0%}: {word}"
        )
    return told
