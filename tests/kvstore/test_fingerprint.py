"""Weights and tokenizers that are equal have one name, and others have two."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import make_tiny_llama

from kvstore.fingerprint import (
    SAMPLED_TENSORS_PER_FILE,
    tokenizer_fingerprint,
    weights_fingerprint,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny random model."""
    return make_tiny_llama(tmp_path / "model")


def test_equal_files_have_one_fingerprint_wherever_they_lie(model: Path, tmp_path: Path) -> None:
    """Nodes that hold copies agree, and tokenizer files don't matter."""
    copy = Path(shutil.copytree(model, tmp_path / "other" / "name"))
    (copy / "tokenizer.json").unlink()
    assert weights_fingerprint(copy) == weights_fingerprint(model)


def test_other_weights_at_the_same_path_have_another(model: Path) -> None:
    """A model swapped for one of equal shape and size does not pass for it."""
    before = weights_fingerprint(model)
    size = (model / "model.safetensors").stat().st_size
    shutil.rmtree(model)
    make_tiny_llama(model, seed=1)
    assert (model / "model.safetensors").stat().st_size == size
    assert weights_fingerprint(model) != before


def set_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}))


def rename_file(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")


def add_file(model: Path) -> None:
    shutil.copy(model / "model.safetensors", model / "zzz.safetensors")


def change_each_tensor(model: Path) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__")
    assert len(header) <= SAMPLED_TENSORS_PER_FILE
    start, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    data[8 + header_bytes + (start + end) // 2] ^= 1
    (model / "model.safetensors").write_bytes(data)


@pytest.mark.parametrize("change", [set_config, rename_file, add_file, change_each_tensor])
def test_a_change_shows(model: Path, change: Callable[[Path], None]) -> None:
    """Config, file names and files count, and the middle of every tensor of a small model."""
    before = weights_fingerprint(model)
    change(model)
    assert weights_fingerprint(model) != before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pickle_it(path: Path) -> None:
    path.write_bytes(b"\x80\x04" + bytes(100))


def point_elsewhere(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-99, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


@pytest.mark.parametrize("damage", [cut, empty, pickle_it, point_elsewhere])
def test_a_damaged_file_is_named(model: Path, damage: Callable[[Path], None]) -> None:
    """A download that broke off has no fingerprint, and the message names the file."""
    damage(model / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated"):
        weights_fingerprint(model)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    """Nothing to fingerprint is not a fingerprint."""
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors"):
        weights_fingerprint(tmp_path)


def write(folder: Path, **contents: object) -> Path:
    """A folder with JSON files of these names."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_token_ids_that_mean_the_same_have_one_name(tmp_path: Path) -> None:
    """Copies agree; the chat template, other settings and the weights don't matter."""
    one = write(tmp_path / "one", tokenizer={"a": 0}, tokenizer_config={"chat_template": "x"})
    two = write(tmp_path / "two", tokenizer={"a": 0}, tokenizer_config={"padding_side": "left"})
    write(tmp_path / "three", tokenizer={"a": 0}, config={"vocab_size": 1}, vocab={"old": 0})
    names = {tokenizer_fingerprint(folder) for folder in (one, two, tmp_path / "three")}
    assert len(names) == 1


def test_whatever_changes_a_token_shows(tmp_path: Path) -> None:
    """Another vocabulary, other merges or one added token make another name."""
    names = [
        tokenizer_fingerprint(write(tmp_path / str(number), **contents))
        for number, contents in enumerate(
            (
                {"tokenizer": {"a": 0}},
                {"tokenizer": {"b": 0}},
                {"tokenizer": {"a": 0}, "added_tokens": {"<x>": 1}},
                {"tokenizer": {"a": 0}, "tokenizer_config": {"added_tokens_decoder": {"1": "x"}}},
                {"vocab": {"a": 0}},
                {"tekken": {"a": 0}},
            )
        )
    ]
    (tmp_path / "4" / "merges.txt").write_text("a b")
    names.append(tokenizer_fingerprint(tmp_path / "4"))
    assert len(set(names)) == len(names)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """Settings and added tokens alone are no vocabulary."""
    folder = write(tmp_path / "m", added_tokens={"<x>": 1}, tokenizer_config={})
    with pytest.raises(FileNotFoundError, match=str(folder)):
        tokenizer_fingerprint(folder)


def test_a_damaged_tokenizer_config_is_named(tmp_path: Path) -> None:
    """What can't be read is not taken for nothing."""
    folder = write(tmp_path / "m", tokenizer={}, tokenizer_config=[])
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not a JSON object"):
        tokenizer_fingerprint(folder)
