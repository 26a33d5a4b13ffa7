"""Prompt lookup against a slow model of itself that is plain to read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replicas.prompt_lookup import LONGEST_MATCH, prompt_lookup

# Few different tokens, so that there is much to find.
contexts = st.lists(st.integers(0, 2), max_size=80)


def array(tokens: list[int]) -> np.ndarray:
    """As the line hands them over."""
    return np.array(tokens, dtype=np.int32)


def obvious(context: list[int], wanted: int, shortest_match: int) -> list[int]:
    """The same by trying every length, longest first, and every place, latest first."""
    for length in range(min(LONGEST_MATCH, len(context) - 1), shortest_match - 1, -1):
        ending = context[-length:]
        for start in range(len(context) - length - 1, -1, -1):
            if context[start : start + length] == ending:
                grown = list(context)
                for place in range(wanted):
                    grown.append(grown[start + length + place])
                return grown[len(context) :]
    return []


@given(contexts, st.integers(0, 20), st.integers(1, LONGEST_MATCH))
def test_it_finds_what_the_obvious_way_finds(
    context: list[int], wanted: int, shortest_match: int
) -> None:
    """The longest match wins, of equal ones the latest, and what runs out goes on with itself."""
    found = prompt_lookup(array(context), wanted, shortest_match)
    assert found.dtype == np.int32
    assert found.tolist() == (obvious(context, wanted, shortest_match) if wanted else [])


@given(contexts, st.integers(1, 20))
def test_it_gives_all_or_nothing_and_leaves_the_context_alone(
    context: list[int], wanted: int
) -> None:
    """A draft has the wanted length or none, and is no window into the context."""
    given_tokens = array(context)
    given_tokens.flags.writeable = False
    found = prompt_lookup(given_tokens, wanted, 1)
    assert len(found) in (0, wanted)
    assert not np.shares_memory(found, given_tokens)


def test_a_text_that_repeats_itself_goes_on() -> None:
    """After `a b a b a` come `b a b a`."""
    assert prompt_lookup(array([1, 2, 1, 2, 1]), 4, 2).tolist() == [2, 1, 2, 1]


def test_nothing_is_found_in_nothing() -> None:
    """A context of no token, or of one, has no past."""
    assert prompt_lookup(array([]), 4, 1).tolist() == []
    assert prompt_lookup(array([5]), 4, 1).tolist() == []
