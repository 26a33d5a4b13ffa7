"""What a router believes of a real engine's cache is what the engine finds there."""

import asyncio
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from engine_process import Ask, EngineProcess
from tiny_models import make_tiny_llama

from kvstore.hashing import Naming, block_hashes, root_hash
from kvstore.kv_follower import KvFollower
from kvstore.kv_messages import KvCodec, LoadReport
from kvstore.prefix_index import PrefixIndex
from replicas.verifier.engine_events import EngineSource
from replicas.verifier.kv_relay import KvRelay, RelaySettings

BLOCK = 32
TOKEN = b"a token of enough bytes"
NAMING = Naming("weights", BLOCK)
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> EngineSource:
    """Sockets in a folder of their own."""
    folder = tmp_path_factory.mktemp("kv")
    return EngineSource(f"ipc://{folder}/events", f"ipc://{folder}/replay", "kv")


@pytest.fixture(scope="module")
def engine(
    source: EngineSource, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    """A tiny float32 engine whose cache of 24 blocks is soon full."""
    folder = tmp_path_factory.mktemp("engine")
    tiny = make_tiny_llama(folder / "tiny")
    with EngineProcess(
        tiny,
        folder / "log",
        kv_cache_memory_bytes=24 * BLOCK * 2048,
        enable_prefix_caching=True,
        kv_events_config={
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": source.events,
            "replay_endpoint": source.replay,
            "topic": source.topic,
        },
    ) as engine:
        yield engine


def load() -> LoadReport:
    return LoadReport(0, 0, 0.0, 0.0, 0, 0, time.time())


async def test_the_index_predicts_what_the_engine_finds(
    engine: EngineProcess, source: EngineSource
) -> None:
    """Conversations that share beginnings, in a cache that keeps evicting them."""
    rng = random.Random(7)
    system = [[rng.randrange(3, 500) for _ in range(70)] for _ in range(3)]
    talks = [system[number % 3].copy() for number in range(6)]
    settings = RelaySettings("127.0.0.1", "127.0.0.1", 25400, 25600)
    relay = KvRelay(source, settings, NAMING, KvCodec(TOKEN), load)
    index = PrefixIndex(10_000)
    follower = KvFollower(index, NAMING, KvCodec(TOKEN))
    root = root_hash("weights", "", "", BLOCK)
    found = computed = 0
    try:
        endpoint = await asyncio.to_thread(relay.start)
        follower.follow({"v": endpoint})
        for turn in range(40):
            talk = talks[rng.randrange(len(talks))]
            if len(talk) > 350:
                del talk[70:]
            talk += [rng.randrange(3, 500) for _ in range(rng.randrange(5, 60))]
            chain = block_hashes(root, np.array(talk, dtype=np.int32), BLOCK)
            match = index.confirm("v", chain, index.match("v", chain))
            (answer,) = (
                await asyncio.to_thread(engine.run, [Ask(prompt=talk, max_tokens=4)])
            ).answers
            # The last token is computed in any case, so a whole prompt is never all cached.
            usable = min(match.device_blocks, (len(talk) - 1) // BLOCK)
            assert answer.cached_tokens == usable * BLOCK, f"turn {turn}"
            found += answer.cached_tokens
            computed += len(chain)
            await settled(relay, follower, index)
        assert found > 1000
        assert computed - found // BLOCK > 2 * 24, "the cache was never full"
        assert relay.account.unnamed == 0
        assert (relay.account.gaps, relay.account.restarts, follower.stats.gaps) == (0, 0, 0)
    finally:
        await follower.close()
        await asyncio.to_thread(relay.close)


async def settled(relay: KvRelay, follower: KvFollower, index: PrefixIndex) -> None:
    """Until the engine's last word has reached the index: nothing new for half a second."""
    async with asyncio.timeout(PATIENCE_S):
        quiet_since_s, seen = time.monotonic(), -1
        while time.monotonic() - quiet_since_s < 0.5:
            await asyncio.sleep(0.02)
            if (number := relay.account.next_batch) != seen or len(index) != relay.account.blocks:
                quiet_since_s, seen = time.monotonic(), number
