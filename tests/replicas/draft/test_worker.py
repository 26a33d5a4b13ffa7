"""A draft worker as Serve makes it: found in the registry, alive, and gone when it ends."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from redis_server import RedisServer
from tiny_models import make_tiny_llama

from configs.schema import ClusterConfig
from kvstore.cluster_token import token_file
from kvstore.fingerprint import tokenizer_fingerprint
from kvstore.registry import Registry
from replicas.draft.worker import (
    DraftWorker,
    draft_worker_environment,
    fingerprint_of,
    vocab_size_of,
)
from replicas.errors import ReplicaError, UnknownVocabulary

SHAPE = {
    "attention_heads": 2,
    "kv_heads": 1,
    "layers": 2,
    "hidden_size": 8,
    "vocab_size": 321,
    "max_context": 64,
    "parameters_billions": 0.1,
}


def config(**more: Any) -> ClusterConfig:
    """A cluster named `one` with split drafting."""
    model = {"name": "m", "source": "/m", **more.pop("model", {})}
    return ClusterConfig.model_validate(
        {"name": "one", "model": model, "drafting": {"split": {}}, **more}
    )


@pytest.fixture
def in_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a replica of Serve, without Ray."""
    replica = SimpleNamespace(replica_id=SimpleNamespace(unique_id="d1"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: replica)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setattr("replicas.draft.worker.log_with_serve", lambda: None)


async def test_a_worker_is_found_while_it_lives(
    in_a_replica: None, redis_server: RedisServer, tmp_path: Path
) -> None:
    """It announces where it listens and what its token ids mean, and leaves when it ends."""
    model = make_tiny_llama(tmp_path / "model")
    run = tmp_path / "run" / "one"
    run.mkdir(parents=True)
    assert redis_server.settings.password is not None
    for file, text in (
        (token_file(run), "a token of enough bytes"),
        (tmp_path / "password", redis_server.settings.password),
    ):
        file.touch(0o600)
        file.write_text(text)
    wanted = config(
        folders={"run": str(tmp_path / "run")},
        redis={
            "url": redis_server.settings.url,
            "password": {"file": str(tmp_path / "password")},
        },
        ports={"drafts_from": 31_900, "drafts_to": 31_999},
        drafting={
            "split": {
                "workers": {
                    "kinds": ["prompt_lookup", "ngram_index"],
                    "ngram": {"memory_mib": 1, "corpus_mib": 1},
                }
            }
        },
    )
    worker = DraftWorker.__new__(DraftWorker)
    await worker.__init__(wanted.model_dump(mode="json"), str(model))  # type: ignore[misc]
    try:
        async with Registry(redis_server.settings, "one") as registry, asyncio.timeout(10):
            while not (reports := (await registry.live("draft")).reports):
                await asyncio.sleep(0.01)
            (report,) = reports
            assert report.worker_id == "d1"
            assert report.endpoint.startswith("tcp://127.0.0.1:319")
            assert report.tokenizer_fingerprint == tokenizer_fingerprint(model)
            assert report.kinds == ["prompt_lookup", "ngram_index"]
            assert report.ngrams is not None
            assert 0 < report.ngrams.held_bytes <= 1 << 20
            while not (await registry.live("draft")).reports[0].ngrams.connected:  # type: ignore[union-attr]
                await asyncio.sleep(0.05)
            await worker.check_health()
            worker._service.close()
            with pytest.raises(ReplicaError, match="died"):
                await worker.check_health()
    finally:
        await worker.__del__()
        worker.__class__ = object_without_del()
    async with Registry(redis_server.settings, "one") as registry:
        assert (await registry.live("draft")).reports == ()


def object_without_del() -> type:
    """As Serve does: a destructor that is a coroutine must not be called by Python again."""
    return type("Ended", (), {})


def test_a_hub_id_stands_for_itself(tmp_path: Path) -> None:
    """Where no folder is, the id names the tokenizer and `model.shape` its size."""
    assert fingerprint_of("org/model") == "org/model"
    assert vocab_size_of(config(model={"shape": SHAPE}), "org/model") == 321


def test_a_folder_says_its_own_size(tmp_path: Path) -> None:
    """config.json goes before what the config claims."""
    model = make_tiny_llama(tmp_path / "model")
    assert vocab_size_of(config(model={"shape": SHAPE}), str(model)) != 321


@pytest.mark.parametrize("source", ["org/model", "."])
def test_a_vocabulary_that_nothing_tells_is_an_error(source: str, tmp_path: Path) -> None:
    """The message says whose, why, and where to say it."""
    where = str(tmp_path) if source == "." else source
    with pytest.raises(UnknownVocabulary, match=rf"{where}.*`model\.shape`"):
        vocab_size_of(config(), where)


def test_the_environment_of_the_config_comes_last() -> None:
    """A worker gets what the config says, over what we would say."""
    wanted = config(drafting={"split": {"workers": {"env": {"OMP_NUM_THREADS": "3", "X": "y"}}}})
    environment = draft_worker_environment(wanted)
    assert (environment["OMP_NUM_THREADS"], environment["X"]) == ("3", "y")
