"""Prompt lookup: what followed the last tokens, the last time they stood in this context.

A draft for nothing where a text repeats itself: code being edited, a summary that
quotes, a form being filled in (Saxena, "Prompt Lookup Decoding", 2023). Verifiers use it
by themselves where no draft worker answers, and draft workers of kind `prompt_lookup`
use nothing else.
"""

import numpy as np

from replicas.messages import Tokens

LONGEST_MATCH = 16
"""Tokens. Among the places where the last tokens stood, the longest match wins; longer
ones than this are as good."""

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


def prompt_lookup(context: Tokens, wanted: int, shortest_match: int) -> Tokens:
    """What may follow `context`, by its own past.

    Of all places where the last tokens stood before, the one with the longest match is
    continued, of equal ones the latest. Where the continuation runs into the end of the
    context it goes on with itself: after `a b a b a` come `b a b a ...`.

    Args:
        context: [tokens] int32, prompt and answer so far.
        wanted: Tokens wanted.
        shortest_match: Matches of fewer tokens don't count.

    Returns:
        [wanted] int32, or [0] where nothing matches. Takes O(context) time: one comparison
        of the whole array, then only the places that are left.
    """
    start, _ = longest_match(context, shortest_match)
    return continued(context, start, wanted) if start and wanted > 0 else _NOTHING


def longest_match(context: Tokens, shortest_match: int) -> tuple[int, int]:
    """Where the last tokens stood before.

    Returns:
        The place behind them, and how many they were, at most `LONGEST_MATCH`; (0, 0) where
        they stood nowhere.
    """
    length = len(context)
    if length <= shortest_match:
        return 0, 0
    # ends[i]: the last token of a match stood here.
    ends = np.flatnonzero(context[:-1] == context[-1])
    for matched in range(1, LONGEST_MATCH):
        if not len(ends) or ends[-1] < matched:
            break
        longer = ends[ends >= matched]
        longer = longer[context[longer - matched] == context[-1 - matched]]
        if not len(longer):
            break
        ends = longer
    else:
        matched = LONGEST_MATCH
    if not len(ends) or matched < shortest_match:
        return 0, 0
    return int(ends[-1]) + 1, matched


def continued(context: Tokens, start: int, wanted: int) -> Tokens:
    """[wanted] tokens from `start` on; at its end the context goes on with what follows `start`."""
    found = context[start : start + wanted]
    if len(found) < wanted:
        found = np.resize(context[start:], wanted)  # repeats what it is given
    return found.copy()
