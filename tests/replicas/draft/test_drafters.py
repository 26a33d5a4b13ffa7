"""Which drafters a config asks for, and what each finds."""

import numpy as np

from configs.schema import ClusterConfig
from replicas.draft.drafters import SURE, PromptLookup, Question, make_drafters


def config(**split: object) -> ClusterConfig:
    """A cluster with split drafting."""
    return ClusterConfig.model_validate(
        {"model": {"name": "m", "source": "/m"}, "drafting": {"split": split}}
    )


def test_the_default_is_prompt_lookup_as_the_config_has_it() -> None:
    """A worker without further words looks things up, from the match that is asked for."""
    assert make_drafters(config(shortest_match=3)) == [PromptLookup(3)]


def test_a_model_is_no_drafter_that_is_asked_in_turn() -> None:
    """It has a thread of its own; the other kinds stay as they are."""
    wanted = config(workers={"kinds": ["prompt_lookup", "model"]})
    assert make_drafters(wanted) == [PromptLookup(2)]


def test_kinds_are_asked_in_the_order_of_the_config() -> None:
    """And an n-gram index that is not there, because sharing is off, is left out."""
    wanted = config(workers={"kinds": ["ngram_index", "prompt_lookup"]})
    index = PromptLookup(9, "ngram_index")
    assert [drafter.kind for drafter in make_drafters(wanted, index)] == [
        "ngram_index",
        "prompt_lookup",
    ]
    assert [drafter.kind for drafter in make_drafters(wanted)] == ["prompt_lookup"]


def test_prompt_lookup_drafts_what_followed_before() -> None:
    """The drafter gives what the function finds, and trusts longer matches more."""
    context = np.array([1, 2, 3, 4, 1, 2], dtype=np.int32)
    guess = PromptLookup(2).draft(Question(context, 3))
    assert (guess.tokens.tolist(), guess.confidence) == ([3, 4, 1], 0.5)
    assert PromptLookup(3).draft(Question(context, 3)).tokens.tolist() == []
    longer = PromptLookup(2).draft(Question(np.tile(context, 4), 3))
    assert longer.confidence > SURE
