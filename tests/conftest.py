"""What tests of several rooms need: a real Redis, real weights, a random adapter."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from redis_server import RedisServer
from tiny_models import make_random_lora

from cluster.errors import ModelError
from cluster.models import ensure_model
from configs.schema import FoldersConfig


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running, empty redis-server with a password."""
    if shutil.which("redis-server") is None:
        _missing("redis-server is missing: `make redis`")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, made on first use where local clusters look for it."""
    try:
        return ensure_model("smollm2-135m-instruct", FoldersConfig().models, lambda _: None)
    except ModelError as error:
        _missing(str(error))


@pytest.fixture(scope="session")
def tiny_adapter(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter for SmolLM2 under which greedy answers are plainly others."""
    return make_random_lora(tmp_path_factory.mktemp("adapter") / "random", smollm2)


def _missing(what: str) -> NoReturn:
    """Skips on a laptop, fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
