"""What a worker is told, what of its answers is believed, and what follows from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import MalformedMessage
from replicas.messages import Draft, DraftBatch, Tokens, pack_tokens
from replicas.verifier.continuations import Continuation, Known
from replicas.verifier.draft_ledger import STEP_TOKENS, DraftLedger, Row

VOCAB_SIZE = 6


def tokens(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


def told(ledger: DraftLedger, step: int, rows: dict[int, Row], now_s: float = 0.0) -> list[int]:
    """Sends a step's news; the bases that it had."""
    batch, _ = ledger.news(step, rows, now_s)
    ledger.sent(batch)
    return [ask.base for ask in batch.asks]


def test_only_what_is_new_is_told() -> None:
    """A context goes once, then its new tokens; with nothing new and nothing wanted, nothing."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    assert told(ledger, 1, {5: Row(tokens(1, 2, 3), 4)}) == [0]
    batch, _ = ledger.news(2, {5: Row(tokens(1, 2, 3, 4), 4)}, 0.0)
    assert (batch.asks[0].base, batch.asks[0].appended) == (3, pack_tokens(tokens(4)))
    ledger.sent(batch)
    assert told(ledger, 3, {5: Row(tokens(1, 2, 3, 4), 0)}) == []
    assert told(ledger, 4, {5: Row(tokens(1, 2, 3, 4), 2)}) == [4]


def test_a_context_that_shrank_goes_whole_again() -> None:
    """It is not the one that was told."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    told(ledger, 1, {5: Row(tokens(1, 2, 3), 4)})
    assert told(ledger, 2, {5: Row(tokens(1, 2), 4)}) == [0]


def test_what_was_not_sent_is_told_the_next_time() -> None:
    """Only `sent` counts: an ask that did not go out changes nothing."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    ledger.news(1, {5: Row(tokens(1, 2), 1)}, 0.0)
    assert told(ledger, 2, {5: Row(tokens(1, 2, 3), 1)}) == [0]


def test_an_unknown_session_goes_whole_once_and_is_then_held() -> None:
    """The ask that was already on its way asks for nothing more; a worker that has no room for
    the whole is left alone for a while.
    """
    ledger = DraftLedger(VOCAB_SIZE, ())
    rows = {5: Row(tokens(1, 2, 3), 4)}
    told(ledger, 1, rows)
    told(ledger, 2, rows)
    told(ledger, 3, rows)
    assert ledger.settled(DraftBatch(2, [], [5]), 0.0) == (True, 1)
    assert told(ledger, 4, rows) == [0]
    assert ledger.settled(DraftBatch(3, [], [5]), 0.0) == (True, 0)
    assert told(ledger, 5, rows) == [3]
    assert ledger.settled(DraftBatch(4, [], [5]), 0.0) == (True, 1)
    assert told(ledger, 6, rows, now_s=0.5) == []
    assert told(ledger, 7, rows, now_s=1.5) == [0]


def test_a_worker_that_forgets_again_and_again_is_not_told_each_time() -> None:
    """Where sessions push one another out of its memory, whole contexts would go every step."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    rows = {5: Row(tokens(1, 2, 3), 4)}
    for step, (now_s, bases) in enumerate([(0.0, [0]), (0.1, [3]), (0.2, [0]), (0.3, [3])]):
        assert told(ledger, step, rows, now_s) == bases
        unknown = [5] if bases == [3] else []
        ledger.settled(DraftBatch(step, [], unknown), now_s)
    assert told(ledger, 9, rows, 1.2) == []
    assert told(ledger, 10, rows, 1.4) == [0]


def test_a_long_prompt_goes_in_parts_behind_the_short_news() -> None:
    """A message is bounded, and no row waits because of another's size."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    long = np.ones(STEP_TOKENS + 10, dtype=np.int32)
    rows = {1: Row(long, 4), 2: Row(tokens(1, 2), 4)}
    batch, left_over = ledger.news(1, rows, 0.0)
    assert [(ask.session, ask.wanted) for ask in batch.asks] == [(2, 4), (1, 0)]
    assert left_over == 1
    ledger.sent(batch)
    batch, left_over = ledger.news(2, rows, 0.0)
    assert {ask.session: (ask.base, ask.wanted) for ask in batch.asks} == {
        2: (2, 4),
        1: (STEP_TOKENS - 2, 4),
    }
    assert left_over == 0


def test_a_source_that_the_worker_does_not_have_is_not_repeated() -> None:
    """What it may call its drafts was said when it registered."""
    ledger = DraftLedger(VOCAB_SIZE, ("ngram",))
    told(ledger, 1, {5: Row(tokens(1), 1)})
    drafts = [Draft(5, 1, pack_tokens(tokens(2)), source) for source in ("ngram", "x\n")]
    said = ledger.believed(DraftBatch(1, drafts, []))
    assert [entry.source for _, entry in said] == ["worker:ngram", "worker:other"]


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("step", DraftBatch(2, [], [])),
        ("step", DraftBatch(0, [], [])),
        ("session", DraftBatch(1, [Draft(6, 1, b"", "")], [])),
        ("session", DraftBatch(1, [], [6])),
        ("base", DraftBatch(1, [Draft(5, 3, b"", "")], [])),
        ("tokens", DraftBatch(1, [Draft(5, 2, b"123", "")], [])),
        ("vocabulary", DraftBatch(1, [Draft(5, 2, pack_tokens(tokens(VOCAB_SIZE)), "")], [])),
        ("vocabulary", DraftBatch(1, [Draft(5, 2, pack_tokens(tokens(-1)), "")], [])),
    ],
)
def test_what_cannot_be_true_is_not_believed(word: str, answer: DraftBatch) -> None:
    """Whatever else stands in the same answer."""
    ledger = DraftLedger(VOCAB_SIZE, ())
    told(ledger, 1, {5: Row(tokens(1, 2), 4)})
    good = Draft(5, 2, pack_tokens(tokens(3)), "")
    with pytest.raises(MalformedMessage) as caught:
        ledger.believed(DraftBatch(answer.step, [good, *answer.drafts], answer.unknown))
    assert caught.value.what == word


def test_an_empty_answer_takes_nothing_away() -> None:
    """It ends the waiting; what ran ahead before still holds."""
    known = Known()
    known.add(Continuation(1, tokens(2, 3, 4), "worker:ngram"), 0.0)
    known.add(Continuation(2, tokens(), "worker:other"), 0.0)
    assert known.is_enough(tokens(1, 2), 9, 100.0)
    draft = known.draft(tokens(1, 2), 9)
    assert draft is not None
    assert draft.tokens.tolist() == [3, 4]


def test_more_is_waited_for_only_if_it_may_come_in_time() -> None:
    """A worker that will say more is waited for, though what it has said so far is as much as was
    wanted; not beyond the deadline, and not once it has said all.
    """
    known, context = Known(), tokens(1, 2)
    known.add(Continuation(2, tokens(7, 8), "worker:prompt_lookup", 0.3, 0.05), now_s=10.0)
    assert not known.is_enough(context, 2, until_s=10.2)
    assert known.is_enough(context, 2, until_s=10.04)
    known.add(Continuation(2, tokens(3), "worker:model", 0.0, 0.05), now_s=10.1)
    assert not known.is_enough(context, 2, until_s=10.2)
    draft = known.draft(context, 2)
    assert draft is not None
    assert (draft.tokens.tolist(), draft.source) == ([3], "worker:model")
    known.add(Continuation(2, tokens(3, 4), "worker:model"), now_s=10.15)
    assert known.is_enough(context, 2, until_s=10.2)


def test_a_step_stays_open_until_all_of_its_answer_is_there() -> None:
    """A part of an answer leaves its step owed, and a worker that has begun has not failed."""
    ledger = DraftLedger(VOCAB_SIZE, ("model",))
    told(ledger, 1, {5: Row(tokens(1, 2), 4)})
    part = DraftBatch(1, [Draft(5, 2, b"", "model", next_ms=20)], more=True)
    assert ledger.believed(part)[0][1].next_s == 0.02
    assert ledger.settled(part, 0.0) == (True, 0)
    assert ledger.owes(1)
    assert ledger.gave_up(1)
    rest = DraftBatch(1, [Draft(5, 2, pack_tokens(tokens(3)), "model")])
    ledger.believed(rest)
    assert ledger.settled(rest, 0.0) == (False, 0)
    assert not ledger.owes(1)


SMALL = st.integers(0, 12)
ANSWERS = st.tuples(
    st.integers(0, 6),
    st.lists(
        st.tuples(st.integers(0, 3), SMALL, st.lists(st.integers(-1, VOCAB_SIZE), max_size=5)),
        max_size=3,
    ),
    st.lists(st.integers(0, 3), max_size=2),
)
STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
        st.lists(ANSWERS, max_size=3),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=8,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_no_answer_makes_a_draft_that_contradicts_the_context(steps: list) -> None:
    """Whatever a worker sends: no more than wanted, all in the vocabulary, and of a continuation
    that the context has followed up to its end.
    """
    ledger = DraftLedger(VOCAB_SIZE, ("ngram",))
    known: dict[int, Known] = {1: Known(), 2: Known()}
    taken: list[Continuation] = []
    context = [0]
    for number, (grown, answers, wanted, over) in enumerate(steps):
        context += grown
        whole = np.array(context, dtype=np.int32)
        told(ledger, number, {session: Row(whole, wanted) for session in known})
        if over and known.pop(2, None) is not None:
            ledger.forget(2)
        for step, drafts, unknown in answers:
            entries = [
                Draft(session, base, pack_tokens(np.array(ids, dtype=np.int32)), "ngram")
                for session, base, ids in drafts
            ]
            answer = DraftBatch(step, entries, unknown)
            try:
                said = ledger.believed(answer)
            except MalformedMessage:
                continue
            ledger.settled(answer, 0.0)
            for session, continuation in said:
                assert continuation.base <= len(context)
                if session in known:
                    known[session].add(continuation, 0.0)
                    taken.append(continuation)
        for each in known.values():
            draft = each.draft(whole, wanted)
            if draft is None:
                continue
            ids = draft.tokens.tolist()
            assert 0 < len(ids) <= wanted
            assert all(0 <= token < VOCAB_SIZE for token in ids)
            assert any(
                entry.tokens[: len(context) - entry.base + len(ids)].tolist()
                == [*context[entry.base :], *ids]
                for entry in taken
            )
