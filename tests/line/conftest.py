"""The lines that the tests of this folder talk to; one runs at a time."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lines import LORA, Line, Lines, base_config

NGRAM = {"max_length": 4, "colocated": {"method": "ngram"}}


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """Starts and ends lines for the whole test session."""
    if shutil.which("redis-server") is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is missing: `make redis`")
        pytest.skip("redis-server is missing: `make redis`")
    manager = Lines(tmp_path_factory.mktemp("lines"))
    yield manager
    manager.end()


@pytest.fixture
def drafting_line(lines: Lines, tiny_adapter: Path) -> Line:
    """One float32 verifier with vLLM's ngram and a LoRA adapter, no keys."""
    config = base_config(drafting=NGRAM)
    config["model"]["adapters"] = [{"name": LORA, "source": str(tiny_adapter)}]
    return lines.get("drafting", config)


@pytest.fixture
def keyless_line(lines: Lines) -> Callable[[], Line]:
    """Starts, when called, one float32 verifier without drafts and without keys."""
    return lambda: lines.get("plain", base_config())


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
    """Two float32 verifiers without drafts, behind keys of two tenants."""
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    hashed = hashlib.sha256(beta.encode()).hexdigest()
    keys.write_text(f"# tenants of the tests\nalpha {alpha}\nbeta sha256:{hashed}\n")
    config = base_config(front_door={"keys": {"file": str(keys)}})
    config["verifiers"] |= {"replicas": 2, "cpus": 1}
    return lines.get("keyed", config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one line run together, so that each line starts once."""
    turn = {"drafting_line": 0, "keyless_line": 1, "keyed_line": 2}

    def when(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return max((turn[name] for name in turn if name in names), default=-1)

    items.sort(key=when)
