"""Where a draft worker's drafts come from: one drafter for each kind of the config."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from configs.schema import ClusterConfig, DraftKind, SplitDrafting
from replicas.errors import NotInThisRelease
from replicas.messages import Tokens
from replicas.prompt_lookup import prompt_lookup


class Drafter(Protocol):
    """Guesses what follows a context."""

    @property
    def kind(self) -> str:
        """A draft kind of the config."""

    def draft(self, context: Tokens, wanted: int) -> Tokens:
        """What may follow.

        Args:
            context: [tokens] int32, prompt and answer so far; read-only.
            wanted: Tokens wanted, 1 or more.

        Returns:
            [up to wanted] int32; [0] where it has no idea.
        """


@dataclass(frozen=True)
class PromptLookup:
    """Drafts from the context's own past.

    Args:
        shortest_match: Matches of fewer tokens don't count.
    """

    shortest_match: int
    kind: str = "prompt_lookup"

    def draft(self, context: Tokens, wanted: int) -> Tokens:
        """As `Drafter.draft`; takes O(context) time."""
        return prompt_lookup(context, wanted, self.shortest_match)


def make_drafters(config: ClusterConfig) -> list[Drafter]:
    """The drafters of a draft worker, in the order in which they are asked.

    The first that finds something for a session wins.

    Raises:
        NotInThisRelease: A kind is not built yet.
    """
    split = config.drafting.split or SplitDrafting()
    check_kinds(split.workers.kinds)
    return [DRAFTERS[kind](split) for kind in split.workers.kinds]


def check_kinds(kinds: Iterable[DraftKind]) -> None:
    """Whether every kind can be made.

    Raises:
        NotInThisRelease: One is not built yet.
    """
    if missing := [kind for kind in kinds if kind not in DRAFTERS]:
        raise NotInThisRelease(
            "drafting.split.workers.kinds",
            f"`{'`, `'.join(missing)}` can't draft yet; write `[{', '.join(DRAFTERS)}]`",
        )


DRAFTERS: dict[DraftKind, Callable[[SplitDrafting], Drafter]] = {
    "prompt_lookup": lambda split: PromptLookup(split.shortest_match),
}
