"""Which draft tokens of a step to make: in the order of their gain for their cost. Pure."""

import math
from typing import Final, NamedTuple

import numpy as np

from replicas.verifier.draft_costs import Books, Bools, Ints, mean_row_s, running_sums

START_GAIN: Final = 0.02
"""Part of the time per token that drafts must save before any is made where none was. Once
begun they go on for as long as they save anything: what is lost by either is at most this."""


class Paying(NamedTuple):
    """Lengths of the sequences that are ours to decide.

    Attributes:
        lengths: [rows] draft tokens.
        unbound: [rows] the same if steps might be of any length.
        best_gain: As `Decision` has it.
        best_gain_needed: As `Decision` has it.
    """

    lengths: Ints
    unbound: Ints
    best_gain: float = 0.0
    best_gain_needed: float = 0.0


def most_that_pays(
    books: Books,
    caps: Ints,
    governed: Bools,
    given: Ints,
    drafting: bool,
    longest_step: float,
) -> Paying:
    """The lengths with the least time per token.

    Args:
        books: Of the batch.
        caps: [rows] longest draft of each.
        governed: [rows] whether its length is ours to decide.
        given: [rows] the others' lengths, 0 where it is ours.
        drafting: As `governor.decide` has it.
        longest_step: As `governor.decide` has it.
    """
    batch, cost, gains = books.batch, books.cost, books.gains
    places = gains.shape[1]
    rooms = np.where(governed, caps, 0)
    possible = (np.arange(places) < rooms[:, None]).ravel()
    candidates = np.flatnonzero(possible)
    none = np.zeros(len(rooms), dtype=np.int64)
    if not len(candidates):
        return Paying(none, none)
    verified = float((given * batch.found).sum())
    row_s = mean_row_s(cost, books.rows + verified, float((rooms * batch.found).sum()))
    token_s = row_s + cost.draft_kv_s * batch.context
    weighed = np.maximum(batch.found, 1e-6)
    score = (gains / (weighed * np.maximum(token_s, 1e-12))[:, None]).ravel()[candidates]
    # Stable, and a row's scores never rise with the place: no token comes before the ones
    # it builds on.
    order = candidates[np.argsort(-score, kind="stable")]
    owner = order // places
    found = batch.found[owner]
    tokens, seconds = books.expected(given)
    base = books.rows + verified
    in_all_tokens = tokens + running_sums(gains.ravel()[order])
    rows_s = cost.rows_s(base + running_sums(found))
    kv_s = cost.draft_kv_s * running_sums(found * batch.context[owner])
    in_all_s = seconds + (rows_s - rows_s[0]) + kv_s
    if not given.any():
        in_all_s[1:] += books.wait_s
    rate = in_all_s / in_all_tokens
    unbound = best = int(np.argmin(rate))
    if longest_step < math.inf:
        allowed = in_all_s <= longest_step * in_all_s[0]
        best = int(np.argmin(np.where(allowed, rate, math.inf)))
    if not drafting and rate[best] > (1.0 - START_GAIN) * rate[0]:
        unbound = best = 0

    def lengths(at: int) -> Ints:
        return np.bincount(owner[:at], minlength=len(rooms))

    certain = max(float(found[0]), 1e-6)
    first_s = float(rows_s[1] - rows_s[0] + kv_s[1])
    return Paying(
        lengths(best),
        lengths(unbound),
        float(gains.ravel()[order[0]]) / certain,
        first_s / certain / (seconds / tokens),
    )
