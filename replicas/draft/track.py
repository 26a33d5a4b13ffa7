"""One session of a draft model: its verifier's text, and what the model has generated behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replicas.draft.branches import Branch, Foresight, Rejection, likeliest_rejections
from replicas.draft.generation import Choice
from replicas.messages import Tokens


@dataclass(frozen=True)
class LookaheadSettings:
    """What the config says of a draft model's lookahead.

    Attributes:
        lookahead: Tokens that are generated beyond the wanted ones.
        fan_out: Branches a session.
        places: Requests that the engine runs at once.
        max_model_len: Longest text of the draft model, tokens.
    """

    lookahead: int
    fan_out: int
    places: int
    max_model_len: int


class Known(NamedTuple):
    """What is known to follow a text.

    Attributes:
        tokens: Generated so far.
        more: Whether as many as were wanted are still to come.
        runs: Whether a request of it is in the engine.
        unread: Tokens of the text that the engine has not read yet.
        choices: How the tokens were chosen.
    """

    tokens: list[int]
    more: bool
    runs: bool = False
    unread: int = 0
    choices: Sequence[Choice] = ()


@dataclass
class LookaheadCounts:
    """What happened since the start.

    Attributes:
        asked: Asks that wanted tokens.
        ready: Of those, answered in full at once.
        followed: Texts that went on along what was generated, bonus token included.
        branched: Along a branch.
        restarted: A way that was not prepared.
        generated: Tokens, branches included.
        branches: Begun.
    """

    asked: int = 0
    ready: int = 0
    followed: int = 0
    branched: int = 0
    restarted: int = 0
    generated: int = 0
    branches: int = 0


@dataclass(slots=True)
class Track:
    """What is generated for one session, and what is still to be.

    Attributes:
        context: [tokens] int32, the confirmed text.
        salt: Who may share cached blocks with it.
        unread: Tokens of the text that the engine has not read yet.
        wanted: Tokens that its verifier wants now.
        tokens: Generated behind the text.
        choices: [tokens] how they were chosen.
        request: Its request while that runs.
        branches: Other ways that the text may go.
    """

    context: Tokens
    salt: str
    unread: int
    wanted: int = 0
    tokens: list[int] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    request: int | None = None
    branches: list[Branch] = field(default_factory=list)

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for it."""
        return len(self.tokens) < self.wanted

    @property
    def known(self) -> Known:
        """What is known to follow its text."""
        runs = self.request is not None
        return Known(list(self.tokens), self.is_short, runs, self.unread, tuple(self.choices))

    @property
    def length(self) -> int:
        """Of its text and what was generated behind it, tokens."""
        return len(self.context) + len(self.tokens)

    def needs(self, settings: LookaheadSettings) -> bool:
        """Whether it has not yet what it wants now and may want next."""
        enough = self.wanted + settings.lookahead
        has_room = self.length < settings.max_model_len
        return has_room and bool(self.wanted) and len(self.tokens) < enough

    def has_plenty(self, settings: LookaheadSettings) -> bool:
        """Whether it has ridden along with others for so long that it should stop."""
        return len(self.tokens) >= self.wanted + 2 * settings.lookahead

    def branch_needs(self, branch: Branch, settings: LookaheadSettings) -> bool:
        """Whether a branch has not yet what would be wanted if the text took it."""
        length = len(self.context) + len(branch.path) + len(branch.tokens)
        return len(branch.tokens) < self.wanted and length < settings.max_model_len

    def branch_along(self, new: list[int]) -> Branch | None:
        """The branch that the text has taken, if it has gone on with `new`."""
        for branch in self.branches:
            path = [*branch.path, *branch.tokens]
            if len(new) >= len(branch.path) and path[: len(new)] == new:
                return branch
        return None

    def is_behind(self, settings: LookaheadSettings) -> bool:
        """Whether the draft that follows full acceptance and the bonus token is not there yet."""
        enough = self.wanted + min(settings.lookahead, self.wanted + 1)
        return self.needs(settings) and len(self.tokens) < enough

    def rejections(
        self, settings: LookaheadSettings, foresight: Foresight, held_up: float
    ) -> list[Rejection]:
        """Branches that it is still to have and that pay while so many drafts are held up (see
        `Foresight.step`)."""
        missing = settings.fan_out - len(self.branches)
        if missing < 1 or not self.wanted:
            return []
        drafted = min(self.wanted, settings.max_model_len - len(self.context) - 2)
        likeliest = likeliest_rejections(self.tokens, self.choices, drafted, self.branches)
        return [
            rejection
            for rejection in likeliest[:missing]
            if foresight.is_worth_it(rejection.chance, self.wanted, held_up)
        ]

    def needs_step(self, settings: LookaheadSettings, foresight: Foresight) -> bool:
        """Whether the engine should step for it; rejections that do not pay yet count, too."""
        return (
            self.needs(settings)
            or bool(self.rejections(settings, foresight, 0))
            or any(
                branch.request is not None and self.branch_needs(branch, settings)
                for branch in self.branches
            )
        )
