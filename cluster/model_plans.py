"""Where a draft model should run, by arithmetic: in the verifier, in a worker, or running ahead.

Pure, as `planner.py` is. A draft model makes tokens one after the other, `T_q` each. A round is

    none          T_p
    in verifier   T_v + k T_q                              both on the verifier's hardware
    split         T_v + RTT + (k + r) T_q                  the worker waits while it verifies
    ahead         T_v + RTT + h max(0, (k + 1) T_q - T_v) + (1 - h) (k + 1/2) T_q + r T_q

`T_v` is the step that verifies k drafts, RTT the way to the worker and back, and r by how much of a
step the first one is longer, as the texts that have gone another way are read in it. For a worker
that waits that is all texts. One that runs ahead has drafted behind the tokens it expects, the
bonus token included, while they were verified: it was right with `h = a_1 ... a_(k+1)`, or had
prepared for what came (fan-out) in a part of the other cases, and then only the part of its
drafting that takes longer than verifying is waited for. Else it begins anew when the step that it
is in has ended. This arithmetic waits for that, too; the governor mostly does not
(`replicas/verifier/patience.py`) and is faster then. With several sequences in a step all are
waited for, so that h is the chance that all of them were right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from cluster.planner import DraftModel, Profile, Round, round_of
from replicas.draft.branches import READING_STEPS

NONE: Final = "none"
IN_VERIFIER: Final = "in the verifier"
SPLIT: Final = "split"
AHEAD: Final = "split, ahead"
WAYS: Final = (NONE, IN_VERIFIER, SPLIT, AHEAD)
RUNNING_STEPS: Final = 0.5
"""What is left, on average, of the draft model's step that runs when a text comes."""


@dataclass(frozen=True)
class WayChoice:
    """The best draft length of one way.

    Attributes:
        way: One of `WAYS`.
        length: Draft tokens; 0 for none.
        round: With such drafts.
    """

    way: str
    length: int
    round: Round


def hit_chance(acceptance: tuple[float, ...], length: int, prepared: float = 0.0) -> float:
    """h of one sequence: that all of its draft and the bonus token were foreseen, or else a way
    that was prepared for came, which is the part `prepared` of the other cases.

    Places that nothing is known of count as the last known one.
    """
    if not acceptance:
        return 0.0
    chance = 1.0
    for place in range(length + 1):
        chance *= acceptance[min(place, len(acceptance) - 1)]
    return chance + (1.0 - chance) * prepared


def model_round(
    profile: Profile, model: DraftModel, way: str, sequences: int, length: int
) -> Round:
    """A step in which each of so many sequences has a draft of so many tokens.

    Args:
        profile: Of the verifier, with the model's acceptance; its `wait_s` is not used.
        model: The draft model.
        way: One of `WAYS`.
        sequences: In the step.
        length: Draft tokens of each; 0 is no speculation whatever the way.
    """
    unasked = replace(profile, wait_s=0.0)
    if way == NONE or not length:
        return round_of(unasked, sequences, 0)
    verify = round_of(unasked, sequences, length)
    if way == IN_VERIFIER:
        return Round(verify.tokens, verify.seconds + length * model.verifier_s)
    if way == SPLIT:
        drafting_s = (length + READING_STEPS * sequences) * model.worker_s
        return Round(verify.tokens, verify.seconds + drafting_s + model.trip_s)
    hit_of_one = hit_chance(profile.acceptance, length, model.prepared)
    hit = hit_of_one**sequences
    late_s = max(0.0, (length + 1) * model.worker_s - verify.seconds)
    reading = READING_STEPS * sequences * (1 - hit_of_one)
    anew_s = ((1 - hit) * (length + RUNNING_STEPS) + reading) * model.worker_s
    return Round(verify.tokens, verify.seconds + model.trip_s + hit * late_s + anew_s)


def best_of_each(
    profile: Profile, model: DraftModel, sequences: int, longest: int
) -> Mapping[str, WayChoice]:
    """The best length of each way at one load; the shortest of equal ones."""
    choices = {NONE: WayChoice(NONE, 0, model_round(profile, model, NONE, sequences, 0))}
    for way in WAYS[1:]:
        lengths = range(1, min(longest, len(profile.acceptance)) + 1)
        rounds = [(k, model_round(profile, model, way, sequences, k)) for k in lengths]
        if rounds:
            length, best = min(rounds, key=lambda entry: entry[1].token_s)
            choices[way] = WayChoice(way, length, best)
    return choices
