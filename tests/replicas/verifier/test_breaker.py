"""A failing worker costs three waits, then one ask now and then."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicas.verifier.breaker import (
    ANSWERS_TO_TRUST,
    LONGEST_OPEN_S,
    MISSES_TO_OPEN,
    SHORTEST_OPEN_S,
    Breaker,
)


def opened() -> Breaker:
    breaker = Breaker()
    breaker.violated(0.0)
    return breaker


def test_misses_open_it_only_in_a_row() -> None:
    """An answer between them makes a new start."""
    breaker = Breaker()
    for _ in range(5):
        for _ in range(MISSES_TO_OPEN - 1):
            breaker.missed(0.0)
        breaker.answered(0.0)
    assert breaker.state == "closed"
    for _ in range(MISSES_TO_OPEN):
        breaker.missed(0.0)
    assert breaker.state == "open"
    assert breaker.opened == 1


def test_one_lie_opens_it() -> None:
    """What cannot be believed once is not asked a second time."""
    breaker = opened()
    assert breaker.state == "open"
    assert breaker.violations == 1
    assert not breaker.may_ask(SHORTEST_OPEN_S - 0.01)


def test_after_its_time_one_probe_may_ask() -> None:
    """Only one, until it is known what came of it."""
    breaker = opened()
    assert breaker.may_ask(SHORTEST_OPEN_S)
    assert breaker.state == "half_open"
    assert not breaker.may_ask(100.0)
    breaker.answered(100.0)
    assert breaker.state == "closed"
    assert breaker.may_ask(100.0)


def test_each_failed_probe_doubles_its_time() -> None:
    """From half a second up to eight, and no further."""
    breaker = opened()
    now_s, waited_s = 0.0, []
    for _ in range(7):
        open_s = SHORTEST_OPEN_S
        while not breaker.may_ask(now_s + open_s):
            open_s += SHORTEST_OPEN_S
        waited_s.append(open_s)
        now_s += open_s
        breaker.missed(now_s)
    assert waited_s == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_few_good_answers_make_its_time_short_again() -> None:
    """And fewer do not: a worker that only answers probes gets few of them."""
    for answers, open_s in ((ANSWERS_TO_TRUST - 1, 1.0), (ANSWERS_TO_TRUST, 0.5)):
        breaker = opened()
        assert breaker.may_ask(1.0)
        for _ in range(answers):
            breaker.answered(1.0)
        breaker.violated(1.0)
        assert not breaker.may_ask(1.0 + open_s - 0.01)
        assert breaker.may_ask(1.0 + open_s)


class AnyLife(RuleBasedStateMachine):
    """Whatever happens to a worker, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now_s = 0.0
        self.in_row = 0
        self.probing = False

    @rule(passed_s=st.floats(0, 10))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def somebody_asks(self) -> None:
        before = self.breaker.state
        allowed = self.breaker.may_ask(self.now_s)
        assert allowed or before != "closed"
        assert not (allowed and self.probing)
        self.probing = self.probing or (allowed and before == "open")

    @rule()
    def it_answers(self) -> None:
        before = self.breaker.state
        self.breaker.answered(self.now_s)
        assert self.breaker.state == ("open" if before == "open" else "closed")
        self.in_row = 0
        self.probing = False

    @rule()
    def it_misses(self) -> None:
        before = self.breaker.state
        self.breaker.missed(self.now_s)
        self.in_row += 1
        if before != "closed" or self.in_row >= MISSES_TO_OPEN:
            assert self.breaker.state == "open"
            self.in_row = 0
        self.probing = False

    @rule()
    def it_lies(self) -> None:
        self.breaker.violated(self.now_s)
        assert self.breaker.state == "open"
        self.in_row = 0
        self.probing = False

    @rule()
    def the_longest_time_passes(self) -> None:
        self.now_s += LONGEST_OPEN_S
        if self.breaker.state == "open":
            assert self.breaker.may_ask(self.now_s)
            self.probing = True

    @invariant()
    def a_probe_is_a_half_open_breaker(self) -> None:
        assert self.probing == (self.breaker.state == "half_open")


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
