"""vLLM's scheduler and our connector bring right blocks to a request, wherever they come from."""

import random
from collections.abc import Iterator

import pytest
from lmcache_server import LmcacheServer
from paged_engine import PagedEngine
from redis_server import RedisServer
from tiny_models import make_tiny_llama

CHUNK, TOKENS = 64, 300
FOUND = TOKENS // CHUNK * CHUNK


@pytest.fixture(scope="module")
def lmcache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LmcacheServer]:
    """A server with Redis behind it."""
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    server = LmcacheServer(tmp_path_factory.mktemp("lmcache"), ({"kind": "redis"},), redis)
    server.start()
    yield server
    server.kill()
    redis.kill()


def test_every_block_is_right_wherever_it_comes_from(
    lmcache: LmcacheServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Computed, cached, from memory, from Redis; and computed again when LMCache is killed."""
    model = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    engine = PagedEngine(model, lmcache.engine_args)
    tokens = [random.randrange(500) for _ in range(TOKENS)]
    assert engine.run(tokens) == 0
    assert engine.run(tokens) > FOUND
    engine.forget()
    assert engine.run(tokens) == FOUND
    assert engine.run(tokens, salt="cd" * 32) == 0
    engine.forget()
    lmcache.empty_memory()
    assert engine.run(tokens) == FOUND
    lmcache.kill()
    engine.forget()
    assert engine.run(tokens) == 0
    engine.close()
