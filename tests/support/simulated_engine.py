"""A simulator of an engine's steps, for the closed loop of draft lengths.

No engine and no clock: a step takes what a `StepCost` says, with noise, and draft tokens are
accepted with the probabilities that a test gives. What comes out are simulated tokens a
simulated second, good for comparing ways to choose lengths and for nothing else.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from replicas.verifier.draft_lengths import DraftLengths
from replicas.verifier.patience import Outlook
from replicas.verifier.step_cost import StepCost, StepLoad

PROMPT_TOKENS = 200
SURE, UNSURE = 0.9, 0.3


@dataclass
class Traffic:
    """What the requests are like.

    Attributes:
        acceptance: Of the i-th request's drafts, at every place, 0-1.
        found: Probability that there is a draft.
        output_tokens: Of one request, after which another takes its place.
        context: KV tokens at the beginning.
        source: Who drafts.
        params: Of the i-th request, vLLM's sampling parameters.
        unsure: Acceptance of half of the drafts, of which their source says that it is not sure.
            None: it says nothing of any.
    """

    acceptance: Callable[[int], float]
    found: float = 1.0
    output_tokens: int = 128
    context: int = PROMPT_TOKENS
    source: str = "worker:prompt_lookup"
    params: Callable[[int], Any] = lambda _: None
    unsure: float | None = None


@dataclass
class _Row:
    number: int
    context: int
    left: int
    draft: int = 0
    rate: float = 0.0
    made: float = 0.0
    """Draft tokens that a draft model has, behind the text so far, and its part of the next."""


@dataclass
class SimulatedEngine:
    """Runs one `DraftLengths`.

    Attributes:
        lengths: Under test.
        cost: The truth.
        longest: Draft tokens.
        wait_s: That a step takes longer when drafts are asked for.
        draft_s: What a draft model takes for a token. 0: drafts are there at once.
        lookahead: Whether it goes on while a step runs.
        noise: Standard deviation of a step's measured time, as a part of it; `seconds` has none.
        hiccup: Probability that a step seems to take ten times as long.
        drafted: Draft tokens verified so far.
        accepted: Of these, accepted.
        tokens: That came so far.
        seconds: That all steps took, without noise.
        asked_steps: Steps in which drafts were asked for.
    """

    lengths: DraftLengths
    cost: StepCost
    longest: int
    wait_s: float = 0.0
    draft_s: float = 0.0
    lookahead: bool = False
    noise: float = 0.05
    hiccup: float = 0.002
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    asked_steps: int = 0
    _rows: list[_Row] = field(default_factory=list)
    _numbers: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, steps: int, rows: int, traffic: Traffic) -> float:
        """So many steps with so many sequences; tokens a second of these steps."""
        tokens, seconds = self.tokens, self.seconds
        for _ in range(steps):
            self._step(rows, traffic)
        return (self.tokens - tokens) / (self.seconds - seconds)

    def _step(self, rows: int, traffic: Traffic) -> None:
        while len(self._rows) > rows:
            self._end(self._rows.pop())
        while len(self._rows) < rows:
            self._rows.append(_Row(self._numbers, traffic.context, traffic.output_tokens))
            self._numbers += 1
        took_s = self._verify(traffic)
        self._rows = [row for row in self._rows if row.left > 0 or self._end(row)]
        asks, chosen_s = self._draft(traffic)
        waited_s = self.wait_s * asks + chosen_s
        self.lengths.waited(waited_s + 1e-4, chosen_s, asks)
        self.asked_steps += asks
        self.seconds += took_s + waited_s

    def _verify(self, traffic: Traffic) -> float:
        load = StepLoad(
            len(self._rows) + sum(row.draft for row in self._rows),
            sum(row.context for row in self._rows),
            sum(row.context * row.draft for row in self._rows),
            len(self._rows),
        )
        seconds = self.cost.seconds(load)
        measured_s = seconds * max(0.2, self._random.gauss(1.0, self.noise))
        if self._random.random() < self.hiccup:
            measured_s *= 10
        self.lengths.stepped(load, measured_s)
        for row in self._rows:
            accepted = 0
            while accepted < row.draft and self._random.random() < row.rate:
                accepted += 1
            self.lengths.settled(str(row.number), accepted + 1, row.draft)
            if self.draft_s:
                ahead = seconds / self.draft_s if self.lookahead else 0.0
                row.made = min(row.made + ahead, row.draft + self.longest + 1)
                goes_on = accepted == row.draft and self._random.random() < row.rate
                row.made = max(0.0, row.made - accepted - 1) if goes_on else 0.0
            self.drafted += row.draft
            self.accepted += accepted
            row.context += accepted + 1
            row.left -= accepted + 1
            self.tokens += accepted + 1
        return seconds

    def _draft(self, traffic: Traffic) -> tuple[bool, float]:
        """Whether any draft was asked for, and how long it was waited for by choice."""
        wanted = self.lengths.choose(
            [str(row.number) for row in self._rows],
            [traffic.params(row.number) for row in self._rows],
            [row.context for row in self._rows],
            [max(0, min(self.longest, row.left - 1)) for row in self._rows],
        )
        chosen_s = self._wait(wanted) if self.draft_s and any(wanted) else 0.0
        for row, its_wanted in zip(self._rows, wanted, strict=True):
            row.draft = its_wanted if self._random.random() < traffic.found else 0
            if self.draft_s:
                row.draft = min(row.draft, int(row.made))
            row.rate, confidence = traffic.acceptance(row.number), 0.0
            if traffic.unsure is not None:
                confidence = SURE
                if self._random.random() < 0.5:
                    row.rate, confidence = traffic.unsure, UNSURE
            if its_wanted:
                name = str(row.number)
                row.draft = self.lengths.worth(name, traffic.source, confidence, row.draft)
                self.lengths.drafted(name, traffic.source, confidence, row.draft)
        return any(wanted), chosen_s

    def _wait(self, wanted: list[int]) -> float:
        waited_s = 0.0
        while True:
            outlooks = {
                str(row.number): Outlook(
                    int(row.made), (1.0 - row.made % 1.0) * self.draft_s, self.draft_s
                )
                for row, its_wanted in zip(self._rows, wanted, strict=True)
                if row.made < its_wanted
            }
            more_s = self.lengths.patience(outlooks)
            if more_s <= 0:
                return waited_s
            for row in self._rows:
                row.made += more_s / self.draft_s + 1e-9
            waited_s += more_s

    def _end(self, row: _Row) -> bool:
        self.lengths.forget([str(row.number)])
        return False


def params(**xargs: Any) -> Any:
    """vLLM's sampling parameters with these `vllm_xargs`."""
    return SimpleNamespace(extra_args=xargs)
