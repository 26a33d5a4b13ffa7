"""Whatever makes KV blocks differ makes their salts differ."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_random_lora, make_tiny_llama

from configs import parse_config
from configs.schema import ClusterConfig
from kvstore.kv_identity import adapter_fingerprints, kv_format, source_fingerprint


def config_of(**sections: Any) -> ClusterConfig:
    model = {"name": "m", "source": "/m", **sections.pop("model", {})}
    return parse_config({"model": model, "hardware": {"kind": "cpu"}, **sections}, "test")


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"dtype": "float16"}},
        {"model": {"quantization": "fp8"}},
        {"verifiers": {"kv_cache": {"dtype": "fp8"}}},
        {"verifiers": {"kv_cache": {"block_size": 64}}},
        {"verifiers": {"engine_args": {"hf_overrides": {"rope_theta": 1}}}},
        {"hardware": {"kind": "gpu"}},
    ],
)
def test_what_changes_values_or_layout_changes_the_format(changed: dict[str, Any]) -> None:
    """bfloat16 and float16 have values of one size, which LMCache alone would mix up."""
    assert kv_format(config_of(**changed)) != kv_format(config_of())


def test_what_does_not_change_them_keeps_the_format() -> None:
    """More verifiers, other ports and another name share what was computed."""
    assert kv_format(
        config_of(name="other", verifiers={"replicas": 3}, ports={"http": 9000})
    ) == kv_format(config_of())


def test_weights_swapped_at_the_same_path_are_others(tmp_path: Path) -> None:
    """And the same weights elsewhere are the same."""
    model = make_tiny_llama(tmp_path / "m", tokenizer=False)
    before = source_fingerprint(str(model))
    copy = shutil.copytree(model, tmp_path / "copy")
    assert source_fingerprint(str(copy)) == before
    shutil.rmtree(model)
    make_tiny_llama(model, seed=1, tokenizer=False)
    assert source_fingerprint(str(model)) != before
    assert source_fingerprint("org/model") == "org/model"


def test_an_adapter_swapped_under_its_name_is_another(tmp_path: Path) -> None:
    """In peft's layout, and in its older one."""
    base = make_tiny_llama(tmp_path / "m", tokenizer=False)
    folder = tmp_path / "a"
    config = config_of(model={"adapters": [{"name": "a", "source": str(folder)}]})
    make_random_lora(folder, base)
    before = adapter_fingerprints(config)
    shutil.rmtree(folder)
    make_random_lora(folder, base, seed=1)
    after = adapter_fingerprints(config)
    assert before != after
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    older = adapter_fingerprints(config)
    (folder / "adapter_model.bin").write_bytes(b"others")
    assert adapter_fingerprints(config) != older
