"""What tests of several rooms need: a real Redis, real weights, the real line."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lines import LORA, Line, Lines, base_config
from missing import missing
from redis_server import RedisServer
from tiny_models import make_random_lora

from cluster.errors import ModelError
from cluster.models import ensure_model
from configs.sections.places import FoldersConfig

NGRAM = {"max_length": 4, "colocated": {"method": "ngram"}}
SPLIT = {"max_length": 4, "split": {"workers": {"replicas": 1, "cpus": 0}}}


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running, empty redis-server with a password."""
    _need_redis_server()
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
        missing(str(error))


@pytest.fixture(scope="session")
def tiny_adapter(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter for SmolLM2 under which greedy answers are plainly others."""
    return make_random_lora(tmp_path_factory.mktemp("adapter") / "random", smollm2)


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """Starts and ends lines for the whole test session."""
    _need_redis_server()
    manager = Lines(tmp_path_factory.mktemp("lines"))
    yield manager
    manager.end()


@pytest.fixture
def drafting_line(lines: Lines, tiny_adapter: Path) -> Line:
    """One float32 verifier with a draft worker and a LoRA adapter, no keys; it always drafts,
    from what stood in a request before and in finished ones.
    """
    workers = {"replicas": 1, "cpus": 0, "kinds": ["prompt_lookup", "ngram_index"]}
    drafting = {"max_length": 4, "governor": {"mode": "fixed"}, "split": {"workers": workers}}
    return lines.get("drafting", _with_adapter(base_config(drafting=drafting), tiny_adapter))


@pytest.fixture
def ngram_line(lines: Lines, tiny_adapter: Path) -> Callable[[], Line]:
    """Starts, when called, the same with vLLM's own ngram instead of the draft worker."""
    return lambda: lines.get("ngram", _with_adapter(base_config(drafting=NGRAM), tiny_adapter))


@pytest.fixture
def keyless_line(lines: Lines, tiny_adapter: Path) -> Callable[[], Line]:
    """Starts, when called, the same without anybody who drafts."""
    return lambda: lines.get("plain", _with_adapter(base_config(), tiny_adapter))


@pytest.fixture
def worker_less_line(lines: Lines) -> Line:
    """One float32 verifier that always drafts, with no draft worker but those a test brings."""
    drafting = {
        "max_length": 4,
        "governor": {"mode": "fixed"},
        "split": {"workers": {"replicas": 0}},
    }
    return lines.get("workerless", base_config(drafting=drafting))


@pytest.fixture
def model_line(lines: Lines) -> Line:
    """One float32 verifier that always drafts, with a draft worker whose model is the target's."""
    draft = {
        "source": "builtin:smollm2-135m-instruct",
        "dtype": "float32",
        "eager": True,
        "max_model_len": 1024,
        "sessions": 8,
        "memory_gib": 0.5,
    }
    split = {
        "local_lookup": False,
        "wait_fraction": 1.0,
        "wait_max_ms": 1000,
        "workers": {"replicas": 1, "cpus": 0, "kinds": ["model"], "draft": draft},
    }
    drafting = {"max_length": 3, "governor": {"mode": "fixed"}, "split": split}
    return lines.get("model", base_config(drafting=drafting))


def _with_adapter(config: dict[str, Any], adapter: Path) -> dict[str, Any]:
    config["model"]["adapters"] = [{"name": LORA, "source": str(adapter)}]
    return config


@pytest.fixture(scope="session")
def alpha() -> str:
    """The API key of tenant alpha."""
    return "sk-alpha-" + "a1" * 12


@pytest.fixture(scope="session")
def beta() -> str:
    """The API key of tenant beta."""
    return "sk-beta-" + "b2" * 12


@pytest.fixture
def keyed_line(lines: Lines, tmp_path: Path, alpha: str, beta: str) -> Line:
    """Two float32 verifiers with one draft worker between them, behind keys of two tenants."""
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    hashed = hashlib.sha256(beta.encode()).hexdigest()
    keys.write_text(f"# tenants of the tests\nalpha {alpha}\nbeta sha256:{hashed}\n")
    config = base_config(front_door={"keys": {"file": str(keys)}}, drafting=SPLIT)
    config["verifiers"] |= {"replicas": 2, "cpus": 1}
    return lines.get("keyed", config)


@pytest.fixture
def two_tenants(tmp_path: Path, alpha: str, beta: str) -> Path:
    """A file of the keys of tenants alpha and beta."""
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"alpha {alpha}\nbeta {beta}\n")
    return keys


@pytest.fixture
def routed_line(lines: Lines, two_tenants: Path) -> Line:
    """Two float32 verifiers behind the prefix-aware router, which says why, with keys of two
    tenants.
    """
    config = base_config(
        front_door={"keys": {"file": str(two_tenants)}},
        router={"policy": "prefix_aware", "explain": True},
    )
    config["verifiers"] |= {"replicas": 2, "cpus": 1}
    return lines.get("routed", config)


@pytest.fixture
def fleet_line(lines: Lines, two_tenants: Path) -> Line:
    """Two float32 verifiers and two draft workers that draft by the fleet's n-grams alone."""
    drafting = {
        "max_length": 4,
        "governor": {"mode": "fixed"},
        "split": {
            "local_lookup": False,
            "workers": {"replicas": 2, "cpus": 0, "kinds": ["ngram_index"]},
        },
    }
    config = base_config(front_door={"keys": {"file": str(two_tenants)}}, drafting=drafting)
    config["verifiers"] |= {"replicas": 2, "cpus": 1}
    return lines.get("fleet", config)


@pytest.fixture
def shared_line(lines: Lines, two_tenants: Path) -> Line:
    """Two float32 verifiers that share KV blocks by LMCache and Redis, and always draft from the
    prompt, behind a prefix-aware router that says why.
    """
    config = base_config(
        front_door={"keys": {"file": str(two_tenants)}},
        router={"policy": "prefix_aware", "explain": True},
        drafting={
            "max_length": 4,
            "governor": {"mode": "fixed"},
            "split": {"workers": {"replicas": 0}},
        },
        redis={"memory_mib": 1024},
        kv={
            "shared": True,
            "chunk_size": 64,
            "shortest_fetch": 64,
            "fetch": "always",
            "wait_max_ms": 20000,
            "tiers": [{"kind": "dram", "size_gib": 0.5}, {"kind": "redis"}],
        },
    )
    config["verifiers"] |= {"replicas": 2, "cpus": 1}
    return lines.get("shared", config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one line run together, so that each line starts once."""
    turn = {
        "drafting_line": 0,
        "keyless_line": 1,
        "keyed_line": 2,
        "worker_less_line": 3,
        "routed_line": 4,
        "shared_line": 5,
    }

    def when(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return max((turn[name] for name in turn if name in names), default=-1)

    items.sort(key=when)


def _need_redis_server() -> None:
    if shutil.which("redis-server") is None:
        missing("redis-server is missing: `make redis`")
