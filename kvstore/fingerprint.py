"""Which weights and which tokenizer a folder holds, each as one short string.

Verifiers announce the weights', and it is part of what KV blocks are keyed by: blocks
computed with other weights at the same path must never be taken for these. Draft workers
announce the tokenizer's: token ids that mean something else make no drafts.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

CONFIG_FILES = ("config.json", "adapter_config.json")
MAX_HEADER_BYTES = 100 * 2**20  # The safetensors library's own limit.
SAMPLED_TENSORS_PER_FILE = 512
SAMPLE_BYTES = 4096
# Each of them names tokens by their ids, where there is no tokenizer.json.
VOCABULARY_FILES = (
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)


def weights_fingerprint(folder: Path) -> str:
    """A SHA-256 (hex) that is equal wherever a folder's weights are equal.

    Covers the bytes of config.json and adapter_config.json, and of every `*.safetensors`
    file its name, size and whole header (each tensor's name, type, shape and place) and
    4 KiB from the middle of up to 512 tensors spread over the file. So other weights of
    the same shape, quantization or fine-tuning show, and 140 GB take a second; a change of
    single numbers elsewhere does not show. Tokenizer and chat template are not covered.

    Raises:
        FileNotFoundError: no `*.safetensors` file lies directly in the folder.
        ValueError: a file is truncated or is not safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors file in {folder}")
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for name in CONFIG_FILES:
        if (folder / name).exists():
            add(name.encode())
            add((folder / name).read_bytes())
    for path in files:
        with path.open("rb") as file:
            fd = file.fileno()
            size = os.fstat(fd).st_size
            header = _read_header(path, fd, size)
            add(path.name.encode())
            add(size.to_bytes(8, "little"))
            add(header)
            for start, end in _sampled_ranges(path, header, size):
                length = min(SAMPLE_BYTES, end - start)
                add(os.pread(fd, length, (start + end - length) // 2))
    return digest.hexdigest()


def tokenizer_fingerprint(folder: Path) -> str:
    """A SHA-256 (hex) that is equal wherever token ids mean the same.

    Covers tokenizer.json or, where there is none, `VOCABULARY_FILES`; and the tokens that
    added_tokens.json and `added_tokens_decoder` of tokenizer_config.json add. Chat template
    and other settings of tokenizer_config.json are not covered.

    Raises:
        FileNotFoundError: none of the files that hold a vocabulary lies in the folder.
        ValueError: tokenizer_config.json is not a JSON object.
    """
    names = ["tokenizer.json"]
    if not (folder / names[0]).is_file():
        names = [name for name in VOCABULARY_FILES if (folder / name).is_file()]
    if not names:
        raise FileNotFoundError(f"no tokenizer.json or other vocabulary in {folder}")
    parts = {name: (folder / name).read_bytes() for name in names}
    if (folder / "added_tokens.json").is_file():
        parts["added_tokens.json"] = (folder / "added_tokens.json").read_bytes()
    if added := _added_tokens(folder / "tokenizer_config.json"):
        parts["tokenizer_config.json"] = added
    digest = hashlib.sha256()
    for name, content in parts.items():
        for part in (name.encode(), content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _added_tokens(config_file: Path) -> bytes:
    """The tokens that a tokenizer_config.json adds; b"" where it adds none or is not there."""
    if not config_file.is_file():
        return b""
    try:
        added = json.loads(config_file.read_bytes()).get("added_tokens_decoder")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{config_file} is not a JSON object") from error
    return json.dumps(added, sort_keys=True).encode() if added else b""


def _read_header(path: Path, fd: int, size: int) -> bytes:
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"{path} is truncated or is not a safetensors file")
    return os.pread(fd, length, 8)


def _sampled_ranges(path: Path, header: bytes, size: int) -> list[tuple[int, int]]:
    """Where in the file the sampled tensors lie, as (start, end)."""
    try:
        tensors: dict[str, Any] = json.loads(header)
        ranges = sorted(
            (8 + len(header) + start, 8 + len(header) + end)
            for start, end in (
                tensor["data_offsets"] for name, tensor in tensors.items() if name != "__metadata__"
            )
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is truncated or is not a safetensors file") from error
    if any(not 8 <= start <= end <= size for start, end in ranges):
        raise ValueError(f"{path} is truncated: it holds {size:,} bytes, its header promises more")
    stride = -(-len(ranges) // SAMPLED_TENSORS_PER_FILE) or 1
    return ranges[::stride]
