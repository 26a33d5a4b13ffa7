"""What the planner's arithmetic says of the arms of `lookahead.py`, beside what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.model_plans import AHEAD, IN_VERIFIER, NONE, SPLIT, model_round
from cluster.planner import DraftModel, Profile
from replicas.verifier.acceptance import expected_tokens
from replicas.verifier.step_cost import StepCost

WORST_RATE, WORST_TOKENS = 0.15, 0.05
FAMILIES = {"colocated": IN_VERIFIER, "split": SPLIT, "ahead": AHEAD}


@dataclass
class Half:
    """What one half of the prompts came to, with the longest drafts, one request at a time."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0

    def add(self, drafted: Sequence[int], accepted: Sequence[int], tokens: int, steps: int) -> None:
        """One more run."""
        self.drafted = _sums(self.drafted, drafted)
        self.accepted = _sums(self.accepted, accepted)
        self.tokens, self.steps = self.tokens + tokens, self.steps + steps

    @property
    def acceptance(self) -> tuple[float, ...]:
        """a_i: by place, of those whose places before were accepted."""
        reached = [self.drafted[0] if self.drafted else 0, *self.accepted]
        return tuple(
            accepted / before
            for accepted, before in zip(self.accepted, reached, strict=False)
            if before
        )


def _sums(ours: list[int], more: Sequence[int]) -> list[int]:
    wide = max(len(ours), len(more))
    return [
        sum(values[place] for values in (ours, more) if place < len(values))
        for place in range(wide)
    ]


@dataclass(frozen=True)
class Measured:
    """One placement and acceptance, batch 1.

    Attributes:
        rates: Tokens/s by arm, medians.
        verify_s: Time of a step without waiting, by draft length; 0 for no drafts.
        draft_s: T_q in a worker.
        trip_s: RTT.
        halves: Of the prompts, with the longest drafts.
        draft_in_verifier_s: T_q where the verifier has it. None: as in a worker.
    """

    rates: Mapping[str, float]
    verify_s: Mapping[int, float]
    draft_s: float
    trip_s: float
    halves: tuple[Half, Half]
    draft_in_verifier_s: float | None = None


def predicted(measured: Measured, arm: str) -> float:
    """Tokens/s of an arm, by T_p, T_q, a and RTT alone."""
    family, _, length = arm.partition(" ")
    plain_s = measured.verify_s[0]
    whole = Half()
    for half in measured.halves:
        whole.add(half.drafted, half.accepted, half.tokens, half.steps)
    knots = tuple((k + 1, s - plain_s) for k, s in sorted(measured.verify_s.items()))
    profile = Profile(StepCost(plain_s, 0.0, knots=knots), whole.acceptance)
    in_verifier_s = measured.draft_in_verifier_s or measured.draft_s
    model = DraftModel(measured.draft_s, in_verifier_s, measured.trip_s)
    way = FAMILIES.get(family, NONE)
    return 1 / model_round(profile, model, way, 1, int(length or 0)).token_s


def words_on(cell: str, measured: Measured, arms: Sequence[str]) -> list[str]:
    """Predictions beside results, and their errors."""
    errors = {arm: predicted(measured, arm) / measured.rates[arm] - 1 for arm in arms}
    worst = max(errors, key=lambda arm: abs(errors[arm]))
    within = sum(abs(error) <= WORST_RATE for error in errors.values())
    told = [
        f"{cell}: predicted tokens/s within {WORST_RATE:.0%} for {within} of {len(arms)} arms; "
        f"median error {statistics.median(map(abs, errors.values())):.0%}, worst "
        f"{errors[worst]:+.0%} ({worst})",
        f"{cell}: " + ", ".join(f"{arm} {error:+.0%}" for arm, error in errors.items()),
    ]
    first, second = measured.halves
    if first.steps and second.steps:
        foreseen, real = expected_tokens(first.acceptance), second.tokens / second.steps
        error = foreseen / real - 1
        word = "met" if abs(error) <= WORST_TOKENS else "missed"
        places = " ".join(f"{rate:.2f}" for rate in first.acceptance)
        told.append(
            f"{cell}: a_i of the first half ({places}) give E[N] {foreseen:.2f} for the second, "
            f"measured {real:.2f}, {error:+.0%}, <= {WORST_TOKENS:.0%}: {word}"
        )
    return told
