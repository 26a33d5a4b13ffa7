"""What a draft model generates, and for whom: decisions alone, against a model of arithmetic."""

import random

import numpy as np
import pytest

from replicas.draft.branches import Foresight
from replicas.draft.generation import Choice, Grown, Plan
from replicas.draft.lookahead import TRACKS_A_PLACE, Lookahead
from replicas.draft.sessions import SessionKey
from replicas.draft.track import Known, LookaheadSettings
from replicas.messages import Tokens

A, B, C = (SessionKey(b"peer", session) for session in (1, 2, 3))


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


class Engine:
    """A model that counts on from its prompt's last token, and holds 100 more for half as likely.

    Attributes:
        texts: Of the requests that run.
    """

    def __init__(self, lookahead: Lookahead, longest: int) -> None:
        self.lookahead = lookahead
        self.texts: dict[int, list[int]] = {}
        self.begun = 0
        self._longest = longest

    def step(self) -> Plan:
        plan = self.lookahead.plan()
        for request in plan.stop:
            del self.texts[request]
        for start in plan.start:
            assert start.request not in self.texts
            assert 0 < len(start.prompt) < self._longest
            self.texts[start.request] = start.prompt.tolist()
            self.begun += 1
        grown = []
        for request, text in self.texts.items():
            text.append(text[-1] + 1)
            assert len(text) <= self._longest
            grown.append(Grown(request, text[-1], Choice(0.6, text[-1] + 100, 0.5)))
        self.lookahead.generated(grown)
        return plan

    def run(self) -> int:
        """Steps until there is nothing to do."""
        for steps in range(1000):
            if not self.lookahead.has_work():
                return steps
            self.step()
        raise AssertionError("it never rests")


def setting(
    lookahead: int = 4, fan_out: int = 0, places: int = 8, longest: int = 1000
) -> tuple[Lookahead, Engine]:
    ahead = Lookahead(LookaheadSettings(lookahead, fan_out, places, longest))
    return ahead, Engine(ahead, longest)


def ask(ahead: Lookahead, key: SessionKey, wanted: int, *text: int) -> Known:
    return ahead.told(key, tokens(*text), wanted, "salt")


def test_it_goes_on_past_what_was_asked_for_and_rests() -> None:
    """Wanted and lookahead are generated, no more; then the engine has nothing to do."""
    ahead, engine = setting(lookahead=4)
    assert ask(ahead, A, 3, 1, 2) == Known([], True, False, 2)
    assert engine.run() == 7
    assert ahead.known(A).tokens == [3, 4, 5, 6, 7, 8, 9]
    assert not ahead.known(A).more


def test_a_text_that_goes_the_same_way_finds_its_answer_ready() -> None:
    """Full acceptance and the bonus token were guessed right: the same request just goes on."""
    ahead, engine = setting(lookahead=4)
    ask(ahead, A, 3, 1, 2)
    engine.run()
    assert ask(ahead, A, 3, 1, 2, 3, 4, 5, 6).tokens == [7, 8, 9]
    engine.run()
    assert ahead.known(A).tokens == [7, 8, 9, 10, 11, 12, 13]
    assert engine.begun == 1
    assert (ahead.counts.asked, ahead.counts.ready, ahead.counts.restarted) == (2, 1, 0)


def test_a_text_that_goes_another_way_starts_anew_behind_it() -> None:
    """The request that guessed wrong is ended, and another begins behind the corrected text."""
    ahead, engine = setting()
    ask(ahead, A, 2, 1, 2)
    engine.run()
    known = ask(ahead, A, 2, 1, 2, 3, 50)
    assert (known.tokens, known.more) == ([], True)
    plan = engine.step()
    assert len(plan.stop) == len(plan.start) == 1
    assert plan.start[0].prompt.tolist() == [1, 2, 3, 50]
    engine.run()
    assert ahead.known(A).tokens[:3] == [51, 52, 53]
    assert ahead.counts.restarted == 1


def test_a_text_that_overtakes_the_model_is_followed() -> None:
    """Where the verifier has gone on without drafts, the model begins behind its text."""
    ahead, engine = setting()
    ask(ahead, A, 2, 1, 2)
    engine.step()
    known = ask(ahead, A, 2, 1, 2, 3, 4, 5)
    assert (known.tokens, known.more) == ([], True)
    engine.run()
    assert ahead.known(A).tokens[:2] == [6, 7]


def test_whoever_is_waited_for_comes_first() -> None:
    """With one place, a session that has what it wants gives way to one that has not."""
    ahead, engine = setting(lookahead=50, places=1)
    ask(ahead, A, 2, 1)
    engine.step()
    engine.step()
    assert not ahead.known(A).more
    ask(ahead, B, 2, 10)
    engine.step()
    engine.step()
    assert ahead.known(B).tokens == [11, 12]
    assert len(engine.texts) == 1


def test_a_short_context_of_the_draft_model_is_used_to_its_end() -> None:
    """Drafts reach the longest text and stop there; a text as long has none."""
    ahead, engine = setting(lookahead=4, longest=6)
    ask(ahead, A, 3, 1, 2, 3, 4)
    engine.run()
    assert ahead.known(A)[:2] == ([5, 6], False)
    known = ask(ahead, A, 3, 1, 2, 3, 4, 5, 6)
    assert (known.tokens, known.more) == ([], False)
    assert ask(ahead, A, 3, 1, 2, 3, 4, 5, 6, 7, 8).more is False
    assert engine.run() <= 1


def test_the_likeliest_rejection_is_prepared_for() -> None:
    """Nobody waits, so the model also follows its own second choice; the text takes it."""
    ahead, engine = setting(lookahead=2, fan_out=1)
    ask(ahead, A, 3, 1, 2)
    engine.run()
    assert ahead.counts.branches == 1
    known = ask(ahead, A, 3, 1, 2, 103)
    assert (known.tokens, known.more) == ([104, 105, 106], False)
    assert (ahead.counts.branched, ahead.counts.restarted, ahead.counts.ready) == (1, 0, 1)
    engine.run()
    assert ahead.known(A).tokens[:5] == [104, 105, 106, 107, 108]


def test_a_prepared_way_has_rejections_of_its_own() -> None:
    """How the model chose on a branch is remembered: where the text takes it, nothing is lost."""
    ahead, engine = setting(lookahead=2, fan_out=1)
    ask(ahead, A, 3, 1, 2)
    engine.run()
    ask(ahead, A, 3, 1, 2, 103)
    plan = engine.step()
    assert [1, 2, 103, 204] in [start.prompt.tolist() for start in plan.start]


def test_branches_give_way() -> None:
    """A branch's place goes to a session that needs one."""
    ahead, engine = setting(lookahead=0, fan_out=3, places=2)
    ask(ahead, A, 2, 1)
    engine.step()
    engine.step()
    engine.step()
    assert ahead.counts.branches > 0
    ask(ahead, B, 2, 50)
    ask(ahead, C, 2, 70)
    engine.step()
    engine.step()
    assert ahead.known(B).tokens == [51, 52]
    assert ahead.known(C).tokens == [71, 72]


def test_what_is_over_leaves_nothing() -> None:
    """A forgotten session's requests end, and of too many sessions the oldest are forgotten."""
    ahead, engine = setting(fan_out=2, places=2)
    ask(ahead, A, 2, 1)
    engine.run()
    ahead.forget(A)
    engine.step()
    assert (len(ahead), ahead.running, engine.texts) == (0, 0, {})
    for session in range(20):
        ask(ahead, SessionKey(b"peer", session), 1, session)
        engine.run()
    assert len(ahead) == 2 * TRACKS_A_PLACE
    ahead.forget_peer(b"peer")
    engine.step()
    assert (len(ahead), engine.texts) == (0, {})


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_what_is_known_follows_the_text(seed: int) -> None:
    """Random texts, lengths, steps and ends, with few places: what is known of a session is what
    the model would say behind its text, and in the end everybody has what he wanted.
    """
    random_ = random.Random(seed)
    longest = random_.choice([12, 40, 1000])
    ahead, engine = setting(
        random_.randrange(6), random_.randrange(4), random_.randrange(1, 5), longest
    )
    texts: dict[SessionKey, list[int]] = {}
    wanted: dict[SessionKey, int] = {}
    for _ in range(150):
        key = SessionKey(random_.choice([b"a", b"b"]), random_.randrange(4))
        event = random_.random()
        if event < 0.05:
            ahead.forget(key)
            texts.pop(key, None)
        elif event < 0.6:
            text = texts.setdefault(key, [1000 * random_.randrange(1, 9)])
            for _ in range(random_.randrange(4)):
                text.append(text[-1] + random_.choice([1, 1, 1, 101, 7]))
            wanted[key] = random_.randrange(4)
            known = ask(ahead, key, wanted[key], *text)
            assert known.tokens == [text[-1] + 1 + i for i in range(len(known.tokens))]
        elif ahead.has_work():
            engine.step()
            assert len(engine.texts) <= ahead._settings.places
    engine.run()
    for key, text in texts.items():
        known = ahead.known(key)
        assert not known.more
        assert known.tokens == [text[-1] + 1 + i for i in range(len(known.tokens))]


def test_a_rejection_that_is_worth_it_is_prepared_beside_the_draft() -> None:
    """As soon as the place is known: before the draft is there, and what follows it."""
    ahead, engine = setting(lookahead=8, fan_out=1)
    ask(ahead, A, 3, 1, 2)
    engine.step()
    plan = engine.step()
    assert [start.prompt.tolist() for start in plan.start] == [[1, 2, 103]]
    assert ahead.known(A).tokens == [3, 4]


def test_drafts_that_are_waited_for_outweigh_rejections() -> None:
    """One that would make many others later is prepared when those are there."""
    ahead, engine = setting(lookahead=8, fan_out=1, places=64)
    for session in range(8):
        ask(ahead, SessionKey(b"peer", session), 3, 1000 * session)
    for _ in range(3):
        engine.step()
    assert ahead.counts.branches == 0
    engine.run()
    assert ahead.counts.branches == 8


def test_a_busy_model_prepares_nothing_in_its_free_moments() -> None:
    """Whoever has enough now is short soon, where that is the rule."""
    foresight = Foresight()
    assert foresight.is_worth_it(0.05, 3, foresight.step(short=0, behind=0))
    for _ in range(100):
        foresight.step(short=4, behind=0)
        free_moment = foresight.step(short=0, behind=0)
    assert not foresight.is_worth_it(0.05, 3, free_moment)
    for _ in range(200):
        free_moment = foresight.step(short=0, behind=0)
    assert foresight.is_worth_it(0.05, 3, free_moment)


@pytest.mark.parametrize("foreseen", [0.0, 0.3])
def test_texts_that_always_go_on_as_drafted_rule_nothing_out(foreseen: float) -> None:
    """However long: where nothing is held up, a rejection is still prepared for."""
    foresight = Foresight()
    for _ in range(50_000):
        foresight.went(followed=True, foreseen=foreseen, taken=False)
    assert foresight.is_worth_it(0.1, 3, 0.0)
    assert not foresight.is_worth_it(0.01, 3, foresight.step(short=1, behind=0))


def test_a_rejection_that_never_comes_is_prepared_last() -> None:
    """Where texts go on as drafted, rejections wait for the draft behind the bonus token."""
    ahead, engine = setting(lookahead=8, fan_out=1)
    text = [1, 2]
    for _ in range(60):
        ask(ahead, A, 3, *text)
        engine.run()
        text += [text[-1] + 1 + i for i in range(4)]
    ask(ahead, A, 3, *text)
    before = ahead.counts.branches
    while ahead.counts.branches == before:
        assert ahead.has_work()
        engine.step()
    assert len(ahead.known(A).tokens) >= 7
