"""A draft worker's socket, asked by real ones: right answers, and nobody harms another."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pytest
import zmq
from waiting import until

from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.draft.answering import MAX_ANSWER_TOKENS
from replicas.draft.drafters import Guess, PromptLookup, Question
from replicas.draft.gate import Outcome
from replicas.draft.listening import advertised_host
from replicas.draft.service import DraftService, ServiceSettings
from replicas.draft.tally import MAX_WORDS
from replicas.errors import NoDraftPort
from replicas.messages import (
    MAX_DRAFT_TOKENS,
    PROTOCOL,
    Ask,
    AskBatch,
    Codec,
    DraftBatch,
    Tokens,
    pack_tokens,
    unpack_tokens,
)

CODEC = Codec(b"the token of the tests")
VOCABULARY = 100
SETTINGS = ServiceSettings(
    host="127.0.0.1",
    advertised_host="127.0.0.1",
    first_port=31_900,
    last_port=31_999,
    vocab_size=VOCABULARY,
    memory_bytes=1 << 20,
    ahead=2,
)
ANSWER_MS = 10_000  # The longest that a test waits for what has to come.


def packed(*tokens: int) -> bytes:
    """Tokens as they travel."""
    return pack_tokens(np.array(tokens, dtype=np.int32))


class Peer:
    """A verifier's end, or whoever claims to be one."""

    def __init__(self, endpoint: str, **options: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        for option, value in options.items():
            self.socket.set(getattr(zmq, option), value)
        self.socket.connect(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def send(self, *asks: Ask, step: int = 1, forget: list[int] | None = None) -> None:
        self.socket.send_multipart(CODEC.pack(AskBatch(step, list(asks), forget or [])))

    def answer(self) -> DraftBatch:
        assert self.socket.poll(ANSWER_MS), "no answer came"
        return CODEC.unpack_drafts(self.socket.recv_multipart())

    def ask(self, *asks: Ask, step: int = 1, forget: list[int] | None = None) -> DraftBatch:
        self.send(*asks, step=step, forget=forget)
        return self.answer()


def drafts(answer: DraftBatch) -> dict[int, tuple[int, list[int], str]]:
    """Base, tokens and source by session."""
    return {
        draft.session: (
            draft.base,
            unpack_tokens(draft.tokens, VOCABULARY).tolist(),
            draft.source,
        )
        for draft in answer.drafts
    }


@pytest.fixture
def service() -> Iterator[DraftService]:
    """Prompt lookup from matches of two tokens."""
    with DraftService(SETTINGS, CODEC, [PromptLookup(2)]) as running:
        yield running
        assert running.is_alive, "no test may kill the thread"


@pytest.fixture
def verifier(service: DraftService) -> Iterator[Peer]:
    """One that behaves."""
    with Peer(service.endpoint) as peer:
        yield peer


def test_an_ask_is_answered_with_what_followed_before(verifier: Peer) -> None:
    """The answer follows the whole context, runs ahead of what was wanted, and says its source."""
    answer = verifier.ask(Ask(5, 0, packed(1, 2, 3, 4, 5, 1, 2), 2), step=42)
    assert (answer.step, answer.unknown) == (42, [])
    assert drafts(answer) == {5: (7, [3, 4, 5, 1], "prompt_lookup")}


def test_later_asks_bring_only_what_is_new(verifier: Peer) -> None:
    """A known session goes on from where it was; without a wish its tokens are only taken in."""
    verifier.ask(Ask(5, 0, packed(1, 2, 3), 0))
    assert drafts(verifier.ask(Ask(5, 3, packed(1), 0))) == {5: (4, [], "")}
    assert drafts(verifier.ask(Ask(5, 4, packed(2), 1))) == {5: (5, [3, 1, 2], "prompt_lookup")}


def test_an_unknown_session_is_asked_for_whole(verifier: Peer) -> None:
    """A worker that lost or never had a context says so, beside the answers it has."""
    verifier.ask(Ask(1, 0, packed(1, 2, 1, 2), 1))
    answer = verifier.ask(Ask(1, 4, packed(1), 1), Ask(2, 7, packed(1), 1))
    assert answer.unknown == [2]
    assert set(drafts(answer)) == {1}
    whole = verifier.ask(Ask(2, 0, packed(1, 2, 1, 2), 1))
    assert (whole.unknown, set(drafts(whole))) == ([], {2})


def test_a_session_that_is_over_is_gone(verifier: Peer, service: DraftService) -> None:
    """Forgotten sessions leave no memory behind, and a message that only forgets is answered."""
    verifier.ask(Ask(1, 0, packed(1, 2), 0), Ask(2, 0, packed(1, 2), 0))
    assert service.stats(time.monotonic()).sessions == 2
    answer = verifier.ask(step=9, forget=[1])
    assert answer == DraftBatch(9, [])
    stats = service.stats(time.monotonic())
    assert (stats.sessions, stats.context_tokens) == (1, 2)
    assert verifier.ask(Ask(1, 2, packed(1), 0)).unknown == [1]


def test_two_verifiers_share_a_worker_and_no_session(service: DraftService, verifier: Peer) -> None:
    """The same number is another session with another verifier."""
    with Peer(service.endpoint) as other:
        verifier.ask(Ask(1, 0, packed(1, 2, 3, 1, 2), 0))
        other.ask(Ask(1, 0, packed(1, 2, 9, 1, 2), 0))
        assert drafts(verifier.ask(Ask(1, 5, b"", 1)))[1][1][0] == 3
        assert drafts(other.ask(Ask(1, 5, b"", 1)))[1][1][0] == 9
        other.ask(forget=[1])
        assert verifier.ask(Ask(1, 5, b"", 1)).unknown == []


def test_tokens_outside_the_vocabulary_cost_their_session(
    verifier: Peer, service: DraftService
) -> None:
    """A session that cannot be meant is dropped and counted, and the others get their drafts."""
    verifier.ask(Ask(1, 0, packed(1), 0))
    answer = verifier.ask(
        Ask(1, 1, packed(VOCABULARY), 1), Ask(2, 0, b"\1\2\3", 1), Ask(3, 0, packed(1, 2, 1, 2), 1)
    )
    assert (set(drafts(answer)), answer.unknown) == ({3}, [])
    stats = service.stats(time.monotonic())
    assert stats.malformed == {"vocabulary": 1, "tokens": 1}
    assert stats.sessions == 1


GARBAGE: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([b""], "frames"),
    "noise": ([b"\x00\xff" * 50, b"noise"], "frames"),
    "too many frames": ([*CODEC.pack(AskBatch(1, [])), b""], "frames"),
    "another cluster": (Codec(b"another cluster's token").pack(AskBatch(1, [])), "token"),
    "an answer": (CODEC.pack(DraftBatch(1, [])), "token"),
    "a foreign version": (CODEC.pack(AskBatch(1, []), version=9), "version 9"),
}


@pytest.mark.parametrize(("frames", "word"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_counted_and_not_answered(
    service: DraftService,
    verifier: Peer,
    frames: list[bytes],
    word: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who sends garbage hears nothing, others go on, and the log says it once."""
    with Peer(service.endpoint) as stranger:
        for _ in range(3):
            stranger.socket.send_multipart(frames)
        until(lambda: service.stats(time.monotonic()).malformed == {word: 3})
        assert drafts(verifier.ask(Ask(1, 0, packed(1, 2, 1, 2), 1)))
        assert not stranger.socket.poll(0)
    assert len([record for record in caplog.records if word in record.getMessage()]) == 1


def test_what_can_be_invented_is_not_counted_without_end(
    service: DraftService, verifier: Peer
) -> None:
    """Anybody can claim any version; the words stay few, and no message goes uncounted."""
    with Peer(service.endpoint) as stranger:
        for version in range(PROTOCOL + 1, 200):
            stranger.socket.send_multipart(CODEC.pack(AskBatch(1, []), version=version))
        stranger.socket.send_multipart([b"noise"])
        until(lambda: sum(service.stats(time.monotonic()).malformed.values()) == 200 - PROTOCOL)
    counted = service.stats(time.monotonic()).malformed
    assert len(counted) < MAX_WORDS
    assert counted["frames"] == 1, "what is wrong with real peers still has its word"


def test_a_message_that_is_too_large_ends_its_connection_only(
    service: DraftService, verifier: Peer
) -> None:
    """Giants are refused before they are in memory."""
    with Peer(service.endpoint) as stranger:
        stranger.socket.send_multipart([b"header", bytes(MAX_MESSAGE_BYTES + 1)])
        assert drafts(verifier.ask(Ask(1, 0, packed(1, 2, 1, 2), 1)))


def test_who_never_reads_blocks_nobody(service: DraftService, verifier: Peer) -> None:
    """Answers to a peer that takes none are dropped and counted; the others get theirs."""
    context = packed(*range(60), *range(60))
    asks = [Ask(number, 0, context, MAX_DRAFT_TOKENS) for number in range(200)]
    with Peer(service.endpoint, RCVHWM=1, RCVBUF=4096) as sloth:
        sent = 0
        while service.stats(time.monotonic()).unsent == 0:
            if sloth.socket.poll(10, zmq.POLLOUT):
                sloth.send(*asks)
                sent += 1
            assert sent < 10_000
        assert drafts(verifier.ask(Ask(1, 0, packed(1, 2, 1, 2), 1)))


class Outbox:
    """Stands for the socket where it matters what has come before the first answer."""

    def __init__(self) -> None:
        self.sent: list[DraftBatch] = []

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK
        self.sent.append(CODEC.unpack_drafts(frames[1:]))


def test_only_the_last_of_the_asks_that_wait_is_drafted_for() -> None:
    """A worker that fell behind takes all tokens in, and spends no time on drafts of the past."""
    outbox = Outbox()
    waiting = [
        (b"v1", AskBatch(1, [Ask(1, 0, packed(1, 2, 3, 1), 1), Ask(2, 0, packed(1, 2, 1, 2), 1)])),
        (b"v2", AskBatch(1, [Ask(1, 0, packed(1, 2, 1, 2), 1)])),
        (b"v1", AskBatch(2, [Ask(1, 4, packed(2), 1), Ask(3, 0, packed(1, 2, 1, 2), 1)])),
    ]
    DraftService(SETTINGS, CODEC, [PromptLookup(2)])._answer_all(outbox, waiting)  # type: ignore[arg-type]
    first, others, last = (drafts(answer) for answer in outbox.sent)
    assert first[1] == (4, [], "")
    assert first[2][1], "a session that the later message does not name"
    assert others[1][1], "another verifier's"
    assert last[1] == (5, [3, 1, 2], "prompt_lookup")
    assert last[3][1]


@dataclass(frozen=True)
class Broken:
    """A drafter that fails."""

    kind: str = "broken"

    def draft(self, question: Question) -> Guess:
        raise ZeroDivisionError

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """Has nothing to learn from."""


@dataclass(frozen=True)
class Endless:
    """A drafter that gives more than was wanted."""

    kind: str = "endless"

    def draft(self, question: Question) -> Guess:
        return Guess(np.zeros(question.wanted + 1_000, dtype=np.int32), 0.5, self.kind)

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """Learns nothing."""


def test_a_drafter_that_fails_costs_its_draft_only(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged once and counted; the next drafter is asked."""
    with (
        DraftService(SETTINGS, CODEC, [Broken(), PromptLookup(2)]) as service,
        Peer(service.endpoint) as verifier,
    ):
        for number in range(3):
            answer = verifier.ask(Ask(number, 0, packed(1, 2, 1, 2), 1))
            assert drafts(answer)[number][2] == "prompt_lookup"
        stats = service.stats(time.monotonic())
        assert (stats.failed_drafts, service.is_alive) == (3, True)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_an_answer_is_always_one_that_verifiers_take() -> None:
    """However many sessions want however much, no answer breaks a limit of the messages."""
    asks = [Ask(number, 0, packed(1), MAX_DRAFT_TOKENS) for number in range(4_096)]
    with (
        DraftService(SETTINGS, CODEC, [Endless()]) as service,
        Peer(service.endpoint) as verifier,
    ):
        answer = verifier.ask(*asks)
    lengths = [len(tokens) for _, tokens, _ in drafts(answer).values()]
    assert len(lengths) + len(answer.unknown) == 4_096
    assert max(lengths) == MAX_DRAFT_TOKENS
    assert sum(lengths) == MAX_ANSWER_TOKENS


def test_what_it_tells_is_what_it_did(service: DraftService, verifier: Peer) -> None:
    """Counts add up, and the busy part of its time is a part."""
    answer = verifier.ask(
        Ask(1, 0, packed(1, 2, 1, 2), 1), Ask(2, 0, packed(3), 1), Ask(3, 5, packed(1), 1)
    )
    stats = service.stats(time.monotonic())
    assert (stats.sessions, stats.context_tokens) == (2, 5)
    assert (stats.asks, stats.unknown) == (3, 1)
    assert stats.drafted_tokens == sum(len(tokens) for _, tokens, _ in drafts(answer).values()) == 3
    assert (stats.malformed, stats.unsent, stats.failed_drafts) == ({}, 0, 0)
    assert 0 <= stats.busy_ratio <= 1


def test_each_worker_of_a_machine_gets_a_port_of_its_own() -> None:
    """The first free one; and a worker that finds none says which it tried."""
    with DraftService(SETTINGS, CODEC, []) as first, DraftService(SETTINGS, CODEC, []) as second:
        assert first.endpoint != second.endpoint
        port = int(first.endpoint.rpartition(":")[2])
        taken = replace(SETTINGS, first_port=port, last_port=port)
        with pytest.raises(NoDraftPort, match=rf"{port} to {port} \(Address already in use\)"):
            DraftService(taken, CODEC, []).start()


def test_a_worker_that_is_closed_frees_its_port_and_its_successor_asks_anew() -> None:
    """Verifiers reach a new worker at the old endpoint over the same socket, from scratch."""
    first = DraftService(SETTINGS, CODEC, [PromptLookup(2)])
    first.start()
    port = int(first.endpoint.rpartition(":")[2])
    again = replace(SETTINGS, first_port=port, last_port=port)
    with Peer(first.endpoint) as verifier:
        verifier.ask(Ask(1, 0, packed(1, 2, 1, 2), 1))
        first.close()
        assert not first.is_alive
        with DraftService(again, CODEC, [PromptLookup(2)]) as second:
            assert second.endpoint == first.endpoint
            assert verifier.ask(Ask(1, 4, packed(1), 1)).unknown == [1]


def test_a_host_that_is_not_ours_is_named() -> None:
    """A worker that cannot listen says where it would."""
    elsewhere = replace(SETTINGS, host="203.0.113.1")
    with pytest.raises(NoDraftPort, match=r"203\.0\.113\.1.*ports\.host"):
        DraftService(elsewhere, CODEC, []).start()


@pytest.mark.parametrize(
    ("host", "advertised"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "10.0.0.7"),
        ("::", "10.0.0.7"),
        ("192.0.2.1", "192.0.2.1"),
    ],
)
def test_a_worker_is_advertised_where_it_can_be_reached(host: str, advertised: str) -> None:
    """At the address it listens on, or at the node's where it listens on all."""
    assert advertised_host(host, "10.0.0.7") == advertised


@dataclass
class Learner:
    """A drafter that says 1, 2, 3 with a confidence of its own, and remembers what it learns."""

    confidence: float
    kind: str
    asked: int = 0
    learned: list[tuple[bytes, Outcome]] = field(default_factory=list)

    def draft(self, question: Question) -> Guess:
        self.asked += 1
        draft = np.array([1, 2, 3], dtype=np.int32)[: question.wanted]
        return Guess(draft, self.confidence, self.kind)

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        self.learned.append((domain, outcome))


def test_the_most_confident_drafter_wins_and_a_sure_one_ends_the_search() -> None:
    """Order counts only between equals, and for who is asked at all."""
    first, second, third = Learner(0.5, "one"), Learner(0.9, "two"), Learner(1.0, "three")
    with (
        DraftService(SETTINGS, CODEC, [first, second, third]) as service,
        Peer(service.endpoint) as verifier,
    ):
        answer = verifier.ask(Ask(1, 0, packed(7), 1))
    assert drafts(answer)[1][2] == "two"
    assert (first.asked, second.asked, third.asked) == (1, 1, 0)


def test_a_drafter_learns_what_became_of_its_draft() -> None:
    """By the text that follows, once, and for the domain of the session."""
    drafter = Learner(0.9, "one")
    with DraftService(SETTINGS, CODEC, [drafter]) as service, Peer(service.endpoint) as verifier:
        verifier.ask(Ask(1, 0, packed(7), 1, b"domain"))
        verifier.ask(Ask(1, 1, packed(1, 2, 9), 1))
        verifier.ask(Ask(1, 4, packed(8), 0))
        verifier.ask(Ask(1, 5, packed(8), 0))
    assert drafter.learned == [(b"domain", Outcome(3, 2)), (b"domain", Outcome(1, 0))]


def test_a_session_that_is_over_leaves_its_text() -> None:
    """Domain and whole context go to whoever wants them; a session dropped otherwise does not."""
    ended: list[tuple[bytes, list[int]]] = []

    def end(domain: bytes, context: Tokens) -> None:
        ended.append((domain, context.tolist()))

    with DraftService(SETTINGS, CODEC, [], end) as service, Peer(service.endpoint) as verifier:
        verifier.ask(Ask(1, 0, packed(1, 2), 0, b"domain"))
        verifier.ask(Ask(1, 2, packed(3), 0))
        verifier.ask(Ask(2, 0, packed(4), 0))
        verifier.ask(Ask(2, 0, packed(5, 6), 0, b"other"))
        verifier.ask(forget=[1, 2, 3])
    assert ended == [(b"domain", [1, 2, 3]), (b"other", [5, 6])]


def test_who_fails_to_take_what_it_is_told_stops_nothing() -> None:
    """Neither a drafter that cannot learn nor a taker of texts costs an answer."""

    class Careless(Learner):
        def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
            raise ZeroDivisionError

    def end(domain: bytes, context: Tokens) -> None:
        raise ZeroDivisionError

    with (
        DraftService(SETTINGS, CODEC, [Careless(0.9, "one")], end) as service,
        Peer(service.endpoint) as verifier,
    ):
        verifier.ask(Ask(1, 0, packed(7), 1))
        assert drafts(verifier.ask(Ask(1, 1, packed(1), 1)))[1][1]
        verifier.ask(forget=[1])
        assert drafts(verifier.ask(Ask(2, 0, packed(7), 1)))[2][1]
        assert service.stats(time.monotonic()).failed_drafts == 2
