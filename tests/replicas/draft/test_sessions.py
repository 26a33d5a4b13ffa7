"""Contexts of sessions against a plain model: right or asked for again, and bounded."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicas.draft.sessions import IDLE_S, SESSION_BYTES, SessionKey, Sessions
from replicas.messages import Tokens

MAX_BYTES = 6_000
keys = st.builds(SessionKey, st.sampled_from([b"v1", b"v2"]), st.integers(0, 5))
token_lists = st.lists(st.integers(0, 9), max_size=400)


def array(tokens: list[int]) -> Tokens:
    """As they come off the wire."""
    return np.array(tokens, dtype=np.int32)


class SessionsMachine(RuleBasedStateMachine):
    """Verifiers that append, forget and lose messages; the store may forget, never be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions(MAX_BYTES)
        self.truth: dict[SessionKey, list[int]] = {}
        self.now_s = 0.0

    @rule(key=keys, tokens=token_lists)
    def begin(self, key: SessionKey, tokens: list[int]) -> None:
        """A whole context always has an answer."""
        context = self.sessions.extend(key, 0, array(tokens), self.now_s)
        self.truth[key] = tokens
        assert context is not None
        assert context.tolist() == tokens

    @rule(key=keys, tokens=token_lists)
    def go_on(self, key: SessionKey, tokens: list[int]) -> None:
        """What is appended follows what was there, or the whole is asked for."""
        before = self.truth.get(key, [])
        if not before:
            return
        context = self.sessions.extend(key, len(before), array(tokens), self.now_s)
        self.truth[key] = before + tokens
        if context is None:
            del self.truth[key]
        else:
            assert context.tolist() == before + tokens
            assert not context.flags.writeable

    @rule(key=keys, wrong=st.integers(1, 50), sign=st.sampled_from([-1, 1]))
    def go_on_from_elsewhere(self, key: SessionKey, wrong: int, sign: int) -> None:
        """A verifier that believes another length is asked for the whole."""
        base = len(self.truth.get(key, [])) + sign * wrong
        if base > 0:
            assert self.sessions.extend(key, base, array([1]), self.now_s) is None
            self.truth.pop(key, None)

    @rule(key=keys)
    def forget(self, key: SessionKey) -> None:
        """What is over is gone."""
        self.sessions.forget(key)
        if self.truth.pop(key, None):
            assert self.sessions.extend(key, 1, array([]), self.now_s) is None

    @rule(peer=st.sampled_from([b"v1", b"v2"]))
    def forget_peer(self, peer: bytes) -> None:
        """A verifier that is gone leaves nothing."""
        self.sessions.forget_peer(peer)
        self.truth = {key: tokens for key, tokens in self.truth.items() if key.peer != peer}

    @rule()
    def sleep(self) -> None:
        """After a long silence nothing is left."""
        self.now_s += IDLE_S
        self.sessions.drop_idle(self.now_s)
        self.truth.clear()
        assert (len(self.sessions), self.sessions.held_bytes) == (0, 0)

    @invariant()
    def memory_is_bounded(self) -> None:
        """However it came about, contexts stay within the bound, and what is told is true."""
        sessions = self.sessions
        assert sessions.held_bytes <= MAX_BYTES
        held = sessions._contexts.values()
        assert sessions.held_bytes == sum(c._array.nbytes + SESSION_BYTES for c in held)
        assert sessions.context_tokens == sum(context.length for context in held)
        assert len(sessions) <= MAX_BYTES // SESSION_BYTES


TestSessions = SessionsMachine.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_session_not_asked_about_for_the_longest_goes_first() -> None:
    """Memory goes to those who ask."""
    sessions = Sessions(3 * (SESSION_BYTES + 4 * 164))
    first, second, third, fourth = (SessionKey(b"v", number) for number in range(4))
    for key in (first, second, third):
        sessions.extend(key, 0, array([1] * 100), 0.0)
    sessions.extend(first, 100, array([2]), 0.0)
    sessions.extend(fourth, 0, array([1] * 100), 0.0)
    assert sessions.evicted == 1
    assert sessions.extend(second, 100, array([2]), 0.0) is None
    assert sessions.extend(first, 101, array([2]), 0.0) is not None


def test_a_context_larger_than_the_memory_is_drafted_for_and_not_kept() -> None:
    """One giant costs itself only, each time."""
    sessions = Sessions(1_000)
    key = SessionKey(b"v", 1)
    context = sessions.extend(key, 0, array([7] * 5_000), 0.0)
    assert context is not None
    assert len(context) == 5_000
    assert (len(sessions), sessions.held_bytes, sessions.evicted) == (0, 0, 1)


@given(st.lists(token_lists, max_size=8))
def test_a_context_stays_as_it_was_given_out(parts: list[list[int]]) -> None:
    """Who holds a context sees no later token in it, and none of another."""
    sessions, key = Sessions(1 << 20), SessionKey(b"v", 1)
    whole = [0]
    given_out = [(sessions.extend(key, 0, array(whole), 0.0), list(whole))]
    for part in parts:
        context = sessions.extend(key, len(whole), array(part), 0.0)
        whole += part
        given_out.append((context, list(whole)))
    assert all(context is not None and context.tolist() == was for context, was in given_out)


def test_only_a_silent_verifier_is_dropped() -> None:
    """Who asks about one session keeps them all."""
    sessions = Sessions(1 << 20)
    for peer in (b"silent", b"busy"):
        sessions.extend(SessionKey(peer, 1), 0, array([1]), 0.0)
    sessions.extend(SessionKey(b"busy", 2), 0, array([1]), IDLE_S - 1)
    sessions.drop_idle(IDLE_S)
    assert sessions.extend(SessionKey(b"silent", 1), 1, array([1]), IDLE_S) is None
    assert sessions.extend(SessionKey(b"busy", 1), 1, array([1]), IDLE_S) is not None
