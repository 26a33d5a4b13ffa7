"""From the engine's events to routers' indices, over the real sockets."""

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import zmq
from scripted_engine import BLOCK, WEIGHTS, ScriptedEngine

from kvstore.hashing import Naming
from kvstore.kv_feed import DOUBTFUL_AFTER_S
from kvstore.kv_follower import KvFollower
from kvstore.kv_messages import KvCodec, LoadReport
from kvstore.prefix_index import PrefixIndex
from replicas.verifier.engine_events import EngineSource
from replicas.verifier.kv_relay import KvRelay, RelaySettings

TOKEN = b"a token of enough bytes"
NAMING = Naming(WEIGHTS, BLOCK)
PROMPT = list(range(10 * BLOCK))
PATIENCE_S = 20.0


class Publisher:
    """The engine's side of the sockets: publishes, and replays when asked."""

    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngine()
        self.source = EngineSource(f"ipc://{folder}/events", f"ipc://{folder}/replay", "kv")
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.bind(self.source.events)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.bind(self.source.replay)

    def say(self, sent: tuple[int, bytes]) -> None:
        """Publishes a batch."""
        number, payload = sent
        self._events.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    def serve_replays(self) -> None:
        """Answers every asking that has come."""
        while self._replay.poll(0):
            asker, _, first = self._replay.recv_multipart()
            for number, payload in self.engine.replay(int.from_bytes(first, "big")):
                self._replay.send_multipart([asker, b"", b"kv", number.to_bytes(8, "big"), payload])
            self._replay.send_multipart([asker, b"", b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self._events.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()


def load() -> LoadReport:
    return LoadReport(3, 400, 0.1, 0.002, 1000, 500, time.time())


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    """An engine that publishes."""
    publisher = Publisher(tmp_path)
    yield publisher
    publisher.close()


@pytest.fixture
def relay(publisher: Publisher) -> Iterator[KvRelay]:
    """A relay of it, on loopback; its endpoint is in `relay.endpoint`."""
    settings = RelaySettings("127.0.0.1", "127.0.0.1", 25100, 25400)
    relay = KvRelay(publisher.source, settings, NAMING, KvCodec(TOKEN), load)
    relay.endpoint = relay.start()  # type: ignore[attr-defined]
    yield relay
    relay.close()


MakeFollower = Callable[..., KvFollower]


@pytest.fixture
async def follower() -> AsyncIterator[MakeFollower]:
    """Makes routers' sides, and closes them."""
    made = []

    def make(naming: Naming = NAMING, token: bytes = TOKEN) -> KvFollower:
        made.append(KvFollower(PrefixIndex(100_000), naming, KvCodec(token)))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def until(publisher: Publisher, is_so: Callable[[], bool]) -> None:
    """Waits for what must come about, serving replays meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            publisher.serve_replays()
            await asyncio.sleep(0.01)


def endpoint(relay: KvRelay) -> dict[str, str]:
    return {"v": relay.endpoint}  # type: ignore[attr-defined]


def knows(follower: KvFollower, publisher: Publisher) -> Callable[[], bool]:
    """Whether the index is exactly what the engine holds."""

    def is_right() -> bool:
        held = set().union(*follower._index._held.get("v", {}).values())
        return "v" in follower._index and held == set(publisher.engine.held.values())

    return is_right


async def test_a_router_that_comes_late_is_warmed_by_a_snapshot(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """And from then on by changes; a second router the same, at its own time."""
    first = publisher.engine.store(PROMPT)
    await until(publisher, lambda: relay.stats.is_listening)
    publisher.say(first)
    one, other = follower(), follower()
    one.follow(endpoint(relay))
    await until(publisher, knows(one, publisher))
    publisher.say(publisher.engine.store([7] * 40))
    publisher.say(publisher.engine.evict(3))
    await until(publisher, knows(one, publisher))
    other.follow(endpoint(relay))
    await until(publisher, knows(other, publisher))
    feed = one.feed("v")
    assert feed is not None
    assert feed.load is not None
    assert feed.load.queued_tokens == 400
    assert one.cached_tokens() == {"v": 500}


async def test_what_the_engine_said_before_the_relay_listened_is_replayed(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """And so are batches that were lost on the way."""
    publisher.engine.store(PROMPT)
    one = follower()
    one.follow(endpoint(relay))
    await until(publisher, lambda: relay.account.next_batch == 1)
    publisher.engine.store([9] * 40)  # lost
    publisher.say(publisher.engine.store([8] * 40))
    await until(publisher, knows(one, publisher))
    assert relay.account.gaps == 1
    assert relay.account.restarts == 0


async def test_a_cleared_cache_is_cold_at_once(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """Under another epoch, by a snapshot that nobody asked for."""
    one = follower()
    one.follow(endpoint(relay))
    publisher.engine.store(PROMPT)
    await until(publisher, knows(one, publisher))
    publisher.say(publisher.engine.clear())
    await until(publisher, lambda: "v" in one._index and len(one._index) == 0)


async def test_a_verifier_that_is_gone_leaves_nothing(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """Left by its router, or silent: no block of it stays."""
    publisher.engine.store(PROMPT)
    one, other = follower(), follower()
    one.follow(endpoint(relay))
    other.follow(endpoint(relay))
    await until(publisher, knows(one, publisher))
    await until(publisher, knows(other, publisher))
    one.follow({})
    assert len(one._index) == 0
    assert one.feed("v") is None
    relay.close()
    feed = other.feed("v")
    assert feed is not None
    await until(publisher, lambda: feed.is_doubtful(time.monotonic()))
    assert len(other._index) == 0
    assert other.stats.gaps == 1
    assert DOUBTFUL_AFTER_S < 2


async def test_who_hashes_otherwise_is_refused_and_cold(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """Other weights or another block size: nothing may match."""
    publisher.engine.store(PROMPT)
    for naming in (Naming("other", BLOCK), Naming(WEIGHTS, 2 * BLOCK)):
        one = follower(naming)
        one.follow(endpoint(relay))
        await until(publisher, lambda one=one: one.stats.refused > 0)
        assert "v" not in one._index


async def test_who_has_another_token_learns_nothing(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """Pickles and noise are counted and dropped; the others are served on."""
    publisher.engine.store(PROMPT)
    stranger, one = follower(token=b"another token, as long"), follower()
    stranger.follow(endpoint(relay))
    await until(publisher, lambda: relay.stats.malformed.get("token", 0) > 0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as noise:
        noise.connect(endpoint(relay)["v"])
        for frames in ([b""], [b"x" * 20, pickle.dumps(print)], [b"PKV\x01" + b"0" * 16, b"\x91"]):
            noise.send_multipart(frames)
        await until(publisher, lambda: relay.stats.malformed.get("frames", 0) > 1)
    one.follow(endpoint(relay))
    await until(publisher, knows(one, publisher))
    assert "v" not in stranger._index


async def test_a_router_that_reads_nothing_is_dropped(
    publisher: Publisher, relay: KvRelay, follower: MakeFollower
) -> None:
    """It costs the relay a bounded queue, and gets a snapshot when it comes back."""
    from kvstore.hashing import SCHEME
    from kvstore.kv_messages import Follow

    codec, one = KvCodec(TOKEN), follower()
    one.follow(endpoint(relay))
    with zmq.Context() as context, context.socket(zmq.DEALER) as lazy:
        lazy.set(zmq.RCVHWM, 1)
        lazy.set(zmq.RCVBUF, 1024)
        lazy.set(zmq.LINGER, 0)
        lazy.connect(endpoint(relay)["v"])
        prompt = 0
        async with asyncio.timeout(PATIENCE_S):
            while relay.stats.dropped_followers == 0:
                lazy.send_multipart(codec.pack(Follow(SCHEME, BLOCK, WEIGHTS, True)))
                prompt += 1
                publisher.say(publisher.engine.store([prompt % 200] * 1024))
                publisher.serve_replays()
                await asyncio.sleep(0)
    await until(publisher, knows(one, publisher))


def test_without_a_free_port_there_is_no_relay(publisher: Publisher) -> None:
    """The verifier runs on, and is cold."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        for host, last in (("127.0.0.1", port), ("nowhere.invalid", port), ("127.0.0.1", port - 1)):
            settings = RelaySettings(host, host, port, last)
            relay = KvRelay(publisher.source, settings, NAMING, KvCodec(TOKEN), load)
            assert relay.start() == ""
            relay.close()
