"""Where a draft worker's drafts come from: one drafter for each kind of the config."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from configs.schema import ClusterConfig
from configs.sections.drafting import SplitDrafting
from replicas.draft.gate import Outcome
from replicas.messages import Tokens
from replicas.prompt_lookup import continued, longest_match

SURE: Final = 0.85
"""Confidence at which the drafters behind are not asked any more, 0-1. Prompt lookup has it from
matches of 12 tokens on."""
DOUBT: Final = 2.0
"""Over the match length in tokens: what speaks against a single place, as in the n-gram index."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a drafter is asked.

    Attributes:
        context: [tokens] int32, prompt and answer so far; read-only.
        wanted: Tokens wanted, 1 or more.
        domain: Sharing domain of the request; empty where nothing may be shared with it.
        now_s: Any clock that never goes back, seconds.
    """

    context: Tokens
    wanted: int
    domain: bytes = b""
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Guess:
    """What may follow a context.

    Attributes:
        tokens: [up to wanted] int32; [0] where the drafter has no idea.
        confidence: Expected part of them that is right, 0-1.
        kind: The drafter's draft kind.
        source: Which of its sources, where it has several.
    """

    tokens: Tokens
    confidence: float
    kind: str
    source: str = ""


NO_GUESS: Final = Guess(np.empty(0, dtype=np.int32), 0.0, "")


class Drafter(Protocol):
    """Guesses what follows a context. Called by one thread; must not wait for anything."""

    @property
    def kind(self) -> str:
        """A draft kind of the config."""

    def draft(self, question: Question) -> Guess:
        """What may follow."""

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """What became of an earlier guess, by the clock of the question."""


@dataclass(frozen=True)
class PromptLookup:
    """Drafts from the context's own past.

    Args:
        shortest_match: Matches of fewer tokens don't count.
    """

    shortest_match: int
    kind: str = "prompt_lookup"

    def draft(self, question: Question) -> Guess:
        """As `Drafter.draft`; takes O(context) time."""
        start, matched = longest_match(question.context, self.shortest_match)
        if not start:
            return NO_GUESS
        tokens = continued(question.context, start, question.wanted)
        return Guess(tokens, matched / (matched + DOUBT), self.kind)

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """Nothing: a request's own past costs nothing to look at, and is its own measure."""


def make_drafters(config: ClusterConfig, ngram_index: Drafter | None = None) -> list[Drafter]:
    """The drafters of a draft worker, in the order in which they are asked.

    Kind `model` is none of them: it takes its time, in a thread of its own (`running_ahead.py`).

    Args:
        config: The cluster's.
        ngram_index: The drafter of kind `ngram_index`. None leaves the kind out, as where
            sharing is off.
    """
    split = config.drafting.split or SplitDrafting()
    drafters: list[Drafter] = []
    for kind in split.workers.kinds:
        if kind == "prompt_lookup":
            drafters.append(PromptLookup(split.shortest_match))
        elif kind == "ngram_index" and ngram_index is not None:
            drafters.append(ngram_index)
    return drafters
