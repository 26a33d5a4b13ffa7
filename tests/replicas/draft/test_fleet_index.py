"""The fleet's n-grams in draft workers: seen by one, drafted by all, and by nobody else."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import zmq
from redis_server import RedisServer
from waiting import until

from configs.schema import ClusterConfig
from kvstore.corpora import EVERYBODY, add_corpus, remove_corpus
from kvstore.ngram_forgetting import forget_domain
from kvstore.ngram_records import NgramKeys, Tokens
from replicas.draft.drafters import Question, make_drafters
from replicas.draft.fleet_index import CORPUS, FLEET, FleetIndex, FleetSettings
from replicas.draft.gate import FIRST_CLOSED_S, Outcome
from replicas.draft.service import DraftService, ServiceSettings
from replicas.draft.worker import ngram_report
from replicas.messages import Ask, AskBatch, Codec, Draft, pack_tokens, unpack_tokens

CODEC = Codec(b"the token of the tests")
VOCABULARY = 1_000
KEYS = NgramKeys("one", "f" * 64)
A, B = b"a" * 32, b"b" * 32
TEXT = list(range(100, 200))
SERVICE = ServiceSettings(
    host="127.0.0.1",
    advertised_host="127.0.0.1",
    first_port=31_900,
    last_port=31_999,
    vocab_size=VOCABULARY,
    memory_bytes=1 << 20,
    ahead=0,
)


def config(**ngram: object) -> ClusterConfig:
    """A cluster named `one` whose workers look here first and then at the fleet."""
    ngram = {"memory_mib": 1, "corpus_mib": 1, **ngram}
    workers = {"kinds": ["prompt_lookup", "ngram_index"], "ngram": ngram}
    return ClusterConfig.model_validate(
        {
            "name": "one",
            "model": {"name": "m", "source": "/m"},
            "drafting": {"split": {"workers": workers}},
        }
    )


def tokens(*ids: int) -> Tokens:
    return np.array(ids, dtype=np.int32)


class Worker:
    """A draft worker without Serve, and one verifier that asks it."""

    def __init__(self, name: str, server: RedisServer, running: ExitStack, **ngram: object) -> None:
        wanted = config(**ngram)
        settings = FleetSettings.of(wanted, KEYS.fingerprint, VOCABULARY, name)
        self.fleet = FleetIndex(settings, server.settings) if settings is not None else None
        ended = self.fleet.ended if self.fleet is not None else None
        self.service = DraftService(SERVICE, CODEC, make_drafters(wanted, self.fleet), ended)
        running.enter_context(self.service)
        if self.fleet is not None:
            self.fleet.start()
            running.callback(self.fleet.close)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        running.callback(context.term)
        self._socket = context.socket(zmq.DEALER)
        running.callback(self._socket.close, 0)
        self._socket.connect(self.service.endpoint)
        self._sessions = 0

    def ask(self, *asks: Ask, forget: list[int] | None = None) -> list[Draft]:
        self._socket.send_multipart(CODEC.pack(AskBatch(1, list(asks), forget or [])))
        assert self._socket.poll(10_000), "no answer came"
        return CODEC.unpack_drafts(self._socket.recv_multipart()).drafts

    def finish(self, text: list[int], domain: bytes) -> None:
        """A request with this text comes and ends."""
        self._sessions += 1
        self.ask(Ask(self._sessions, 0, pack_tokens(tokens(*text)), 0, domain))
        self.ask(forget=[self._sessions])

    def draft(self, text: list[int], domain: bytes, wanted: int = 4) -> tuple[list[int], str]:
        """What a new request with this text is drafted, and from where; it leaves no trace."""
        self._sessions += 1
        asked = Ask(self._sessions, 0, pack_tokens(tokens(*text)), wanted, domain)
        (draft,) = self.ask(asked)
        return unpack_tokens(draft.tokens, VOCABULARY).tolist(), draft.source


@pytest.fixture
def worker(redis_server: RedisServer) -> Iterator[Callable[..., Worker]]:
    """Starts workers, and ends them after the test."""
    with ExitStack() as running:
        yield lambda name, **ngram: Worker(name, redis_server, running, **ngram)


def test_what_one_worker_saw_finished_the_other_drafts(worker: Callable[..., Worker]) -> None:
    """For another request of the same domain; a text that still runs is nobody's."""
    one, two = worker("one"), worker("two")
    one.ask(Ask(99, 0, pack_tokens(tokens(*TEXT)), 0, A))
    assert two.draft([7, *TEXT[10:20]], A) == ([], "")
    one.finish(TEXT, A)
    until(lambda: two.draft([7, *TEXT[10:20]], A)[0] != [])
    assert two.draft([7, *TEXT[10:20]], A) == (TEXT[20:24], "ngram_index")
    assert one.draft([7, *TEXT[50:60]], A) == (TEXT[60:64], "ngram_index")


def test_a_long_match_in_the_request_itself_goes_first(worker: Callable[..., Worker]) -> None:
    """A request that repeats itself is drafted from itself, whatever others wrote."""
    one = worker("one")
    one.finish([*TEXT[:20], 9, 9, 9, 9], A)
    until(lambda: one.draft([7, *TEXT[10:20]], A)[0] == [9, 9, 9, 9])
    own = [*TEXT[:30], 7, *TEXT[:20]]
    assert one.draft(own, A) == (TEXT[20:24], "prompt_lookup")
    short = [*TEXT[18:20], 5, 6, 7, 8, *TEXT[:20]]
    assert one.draft(short, A) == ([9, 9, 9, 9], "ngram_index")


def test_no_tenant_sees_another(worker: Callable[..., Worker]) -> None:
    """B's drafts are the same with and without A's traffic; who has no domain shares nothing."""
    alone, together = worker("alone"), worker("together", sharing="tenant")
    generator = np.random.default_rng(0)
    own = [generator.integers(0, 30, 60).tolist() for _ in range(20)]
    theirs = [generator.integers(0, 30, 60).tolist() for _ in range(40)]
    for text in theirs:
        together.finish(text, A)
        alone.finish(text, b"")
    for text in own:
        together.finish(text, B)
    for each in (alone, together):
        assert each.fleet is not None
        fleet = each.fleet
        until(lambda fleet=fleet: fleet.stats(0.0).index.inserted_tokens >= 1_200)  # type: ignore[misc]
    until(lambda: together.fleet.stats(0.0).index.domains == 2)  # type: ignore[union-attr]
    # `alone` has B's texts from `together`, and A's as well: now it forgets A's.
    assert alone.fleet is not None
    until(lambda: alone.fleet.stats(0.0).index.documents == 60)  # type: ignore[union-attr]
    alone.fleet._index.erase(A, time.time())
    drafts = 0
    for _ in range(200):
        context = generator.integers(0, 30, 12).tolist()
        expected = alone.draft(context, B)
        assert together.draft(context, B) == expected
        drafts += len(expected[0])
        assert alone.draft(context, A)[1] != "ngram_index"
        assert together.draft(context, b"")[1] != "ngram_index"
    assert drafts > 100, "or else it shows nothing"


def test_a_cluster_can_share_everything_or_nothing(worker: Callable[..., Worker]) -> None:
    """`cluster`: one domain for all. `off`: no index, no exchange, the other kinds as ever."""
    shared, off = worker("shared", sharing="cluster"), worker("off", sharing="off")
    shared.finish(TEXT, A)
    until(lambda: shared.draft([7, *TEXT[10:20]], B)[0] == TEXT[20:24])
    assert off.fleet is None
    off.finish(TEXT, A)
    assert off.service.kinds == ["prompt_lookup"]
    assert off.draft([7, *TEXT[10:20]], A) == ([], "")


def test_a_corpus_is_drafted_from_while_it_is_there(
    worker: Callable[..., Worker], redis_server: RedisServer
) -> None:
    """Everybody's by everybody, a tenant's by its requests; a broken one costs only itself."""
    with redis_server.client() as client:
        for name, domain, text in (("all", EVERYBODY, TEXT), ("b", B, list(range(300, 400)))):
            add_corpus(
                client, KEYS, name, tokens(*text), domain=domain, tenant="", max_tokens=10_000
            )
        broken = add_corpus(
            client, KEYS, "broken", tokens(1, 2, 3), domain=B, tenant="", max_tokens=10_000
        )
        client.set(KEYS.corpus_piece(broken.corpus_id, 0), b"noise")
        one = worker("one")
        until(lambda: one.draft([7, *TEXT[10:20]], A)[0] != [])
        for domain in (A, B, b""):
            assert one.draft([7, *TEXT[10:20]], domain) == (TEXT[20:24], "ngram_index")
        assert one.draft([7, 310, 311, 312], B)[0] == [313, 314, 315, 316]
        assert one.draft([7, 310, 311, 312], A)[0] == []
        assert one.fleet is not None
        stats = one.fleet.stats(0.0)
        assert (stats.corpus_tokens, stats.corpora_failed) == (200, 1)
        remove_corpus(client, KEYS, "all")
        until(lambda: one.draft([7, *TEXT[10:20]], A)[0] == [])
        assert one.draft([7, 310, 311, 312], B)[0] != []


def test_a_forgotten_tenant_is_not_drafted_from(
    worker: Callable[..., Worker], redis_server: RedisServer
) -> None:
    """On no worker, and others' texts are."""
    one, two = worker("one"), worker("two")
    one.finish(TEXT, A)
    one.finish(TEXT, B)
    for domain in (A, B):
        until(lambda of=domain: two.draft([7, *TEXT[10:20]], of)[0] != [])  # type: ignore[misc]
    with redis_server.client() as client:
        forget_domain(client, KEYS, A, time.time(), 1_000.0)
    for each in (one, two):
        until(lambda each=each: each.draft([7, *TEXT[10:20]], A)[0] == [])  # type: ignore[misc]
        assert each.draft([7, *TEXT[10:20]], B)[0] == TEXT[20:24]


def test_drafts_that_are_always_wrong_are_stopped_and_tried_again(
    redis_server: RedisServer,
) -> None:
    """For their source and domain only."""
    settings = FleetSettings.of(config(), KEYS.fingerprint, VOCABULARY, "one")
    assert settings is not None
    fleet = FleetIndex(settings, redis_server.settings)
    for domain in (A, B):
        fleet._index.add(domain, tokens(*TEXT), time.time())

    def guess(domain: bytes, now_s: float) -> list[int]:
        found = fleet.draft(Question(tokens(*TEXT[:9]), 2, domain, now_s))
        if len(found.tokens):
            assert found.source == FLEET
            fleet.learn(found, domain, Outcome(1, 0 if domain == A else 1), now_s)
        return found.tokens.tolist()

    for _ in range(100):
        guess(A, 0.0)
        guess(B, 0.0)
    assert guess(A, 0.0) == []
    assert guess(B, 0.0) == TEXT[9:11]
    assert fleet.stats(0.0).gates_closed == 1
    assert guess(A, FIRST_CLOSED_S) == TEXT[9:11]
    assert CORPUS != FLEET


def test_a_dead_redis_costs_the_others_texts_only(
    worker: Callable[..., Worker], redis_server: RedisServer
) -> None:
    """Own texts are drafted from, and asks are answered as fast as ever."""
    one = worker("one")
    redis_server.kill()
    one.finish(TEXT, A)
    until(lambda: one.draft([7, *TEXT[10:20]], A) == (TEXT[20:24], "ngram_index"))
    assert one.fleet is not None
    until(lambda: not one.fleet.stats(0.0).exchange.connected)  # type: ignore[union-attr]


def test_memory_and_stream_stay_within_their_bounds(
    worker: Callable[..., Worker], redis_server: RedisServer
) -> None:
    """Unique text without end: index and Redis plateau, evictions count, the newest is drafted."""
    one = worker("one", memory_mib=1, stream_tokens=65_536)
    two = worker("two", memory_mib=1, stream_tokens=65_536)
    generator = np.random.default_rng(0)
    assert one.fleet is not None
    assert two.fleet is not None
    before = one.fleet.stats(0.0).index.held_bytes
    assert before <= 1 << 20
    for number in range(150):
        text = generator.integers(0, VOCABULARY, 1_000).tolist()
        one.finish(text, A)
        if number % 50 == 49:
            asked, expected = text[200:230], text[230:234]
            until(lambda a=asked, e=expected: two.draft(a, A)[0] == e)  # type: ignore[misc]
    for fleet in (one.fleet, two.fleet):
        stats = fleet.stats(0.0)
        assert stats.index.held_bytes == before
        assert stats.index.evicted_tokens > 50_000
    with redis_server.client() as client:
        assert client.memory_usage(KEYS.stream) < 2 * 4 * 65_536
    report = ngram_report(two.fleet.stats(0.0))
    assert report.received == 150
    assert report.evicted_tokens > 50_000
    assert report.connected
