"""What a draft model's lookahead and its engine say to each other."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from replicas.messages import Tokens


class Start(NamedTuple):
    """A request to begin; it goes on until it is ended.

    Attributes:
        request: Its number, never used again.
        prompt: [tokens] int32, shorter than the model's longest text.
        salt: Requests of other salts share no cached blocks with it.
        is_spare: Whether it gives way to those that are not.
    """

    request: int
    prompt: Tokens
    salt: str
    is_spare: bool


class Plan(NamedTuple):
    """What is to be done before the next step: requests to end, then those to begin."""

    stop: list[int]
    start: list[Start]


class Choice(NamedTuple):
    """How sure a model was of a token.

    Attributes:
        chance: Its probability, 0-1; 0 where it is not known.
        other: The second likeliest token; -1 where it is not known.
        doubt: The other's probability over its own, 0-1: how near that was.
    """

    chance: float = 0.0
    other: int = -1
    doubt: float = 0.0


UNKNOWN: Final = Choice()


class Grown(NamedTuple):
    """What one engine step brought a request.

    Attributes:
        request: Its number.
        token: The next one.
        choice: How it was chosen.
    """

    request: int
    token: int
    choice: Choice = UNKNOWN


class DraftEngine(Protocol):
    """Runs a draft model, greedily. Called by one thread."""

    @property
    def max_model_len(self) -> int:
        """Longest text, tokens."""

    @property
    def vocab_size(self) -> int:
        """Tokens that it knows."""

    def change(self, plan: Plan) -> None:
        """Ends requests, then begins others."""

    def step(self) -> Sequence[Grown]:
        """One step of all running requests; those in prefill bring nothing yet."""

    def close(self) -> None:
        """Gives everything back."""
