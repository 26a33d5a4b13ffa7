"""What a model's folder on this machine says about the model: its sizes, its weights.

Read as vLLM 0.32 reads config.json (vllm/transformers_utils/model_arch_config_convertor.py),
but without importing it, and leaving empty what is not there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from configs.sections.verifiers import ModelShape

HEAD_KEYS = ("num_attention_heads", "n_head")
KV_HEAD_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# RoPE types whose factor is already in the context length (vllm/config/model.py).
ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
# Where one of these is set, not every layer keeps keys and values of every token.
OTHER_ATTENTION_KEYS = ("kv_lora_rank", "compress_ratios", "num_kv_shared_layers", "ssm_cfg")
BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model that checks and plans compute with."""

    attention_heads: int
    kv_heads: int
    head_dim: int
    layers: int
    hidden_size: int
    vocab_size: int
    max_context: int | None  # tokens

    @classmethod
    def of_shape(cls, shape: ModelShape) -> Self:
        """As a config states them."""
        return cls(
            attention_heads=shape.attention_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim or shape.hidden_size // shape.attention_heads,
            layers=shape.layers,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            max_context=shape.max_context,
        )


@dataclass(frozen=True)
class ModelFacts:
    """What the folder of one model says; empty where the model is not on this machine."""

    folder: Path | None = None  # only where there is one
    unreadable: str | None = None  # why its config.json says nothing
    architecture: Architecture | None = None
    plain_attention: bool = True  # every layer keeps keys and values of every token
    quantization: str | None = None  # config.json's quant_method; "" for none
    quantization_bits: int | None = None  # of one weight
    fp8_weights: bool = False
    weight_bytes: int | None = None  # on disk
    dtype_bytes: int | None = None  # of one unquantized weight on disk
    default_min_p: float = 0.0  # what its generation_config.json gives every request


def locate(source: str, models: Path) -> Path | None:
    """Where a model's weights lie, whether they are there yet or not; None for a hub id.

    Args:
        source: `model.source`, or a draft's or an adapter's.
        models: `folders.models`, home of the `builtin:` ones.
    """
    if source.startswith("builtin:"):
        return models / source.removeprefix("builtin:")
    return Path(source) if source.startswith("/") else None


def read_model(folder: Path | None) -> ModelFacts:
    """The facts about a model whose weights are in `folder`; none where there is no folder."""
    try:
        if folder is None or not folder.is_dir():
            return ModelFacts()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _facts(folder, config, config.get("text_config") or config)
    except FileNotFoundError:
        return ModelFacts(folder, unreadable="there is no config.json in it")
    except json.JSONDecodeError as error:
        return ModelFacts(folder, unreadable=f"its config.json is not JSON ({error})")
    except OSError as error:
        return ModelFacts(folder, unreadable=f"it cannot be read ({error.strerror})")
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return ModelFacts(folder, unreadable="its config.json is not what vLLM would read")


def _facts(folder: Path, config: dict[str, Any], text: dict[str, Any]) -> ModelFacts:
    """Of the whole config and its part about text, which in text models are the same."""
    method = config.get("quantization_config") or config.get("compression_config") or {}
    name = str(method.get("quant_method", "")).lower().replace("_tensors", "-tensors")
    # Older AWQ and GPTQ weights name their method in a file of its own.
    kept_elsewhere = any(folder.glob("quant*_config.json"))
    dtype = next(
        (c[key] for c in (config, text) for key in ("dtype", "torch_dtype") if c.get(key)), ""
    )
    return ModelFacts(
        folder=folder,
        architecture=_architecture(text),
        plain_attention=_plain_attention(text),
        quantization=None if not name and kept_elsewhere else name,
        quantization_bits=_number(method, ("bits", "w_bit")),
        fp8_weights=name == "fp8" or method.get("format") == "float-quantized",
        weight_bytes=sum(path.stat().st_size for path in _weight_files(folder)) or None,
        dtype_bytes=BYTES_OF_DTYPE.get(dtype),
        default_min_p=_default_min_p(folder),
    )


def _default_min_p(folder: Path) -> float:
    try:
        defaults = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        return float(defaults.get("min_p") or 0.0)
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0  # none, or not what vLLM would read: it tells when it starts


def _architecture(text: dict[str, Any]) -> Architecture | None:
    heads = _number(text, HEAD_KEYS)
    layers = _number(text, ("num_hidden_layers", "n_layer", "num_layers"))
    hidden_size = _number(text, ("hidden_size", "n_embd"))
    vocab_size = _number(text, ("vocab_size",))
    if heads is None or layers is None or hidden_size is None or vocab_size is None:
        return None
    return Architecture(
        attention_heads=heads,
        kv_heads=_number(text, KV_HEAD_KEYS) or heads,
        head_dim=_number(text, ("head_dim", "hidden_size_per_head")) or hidden_size // heads,
        layers=layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context=_max_context(text),
    )


def _number(config: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    """The first of `keys` that is a positive whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def _max_context(text: dict[str, Any]) -> int | None:
    lengths = [length for key in CONTEXT_KEYS if (length := _number(text, (key,)))]
    context = _number(text, ("model_max_length",)) or min(lengths, default=None)
    if context is None or "gemma3" in str(text.get("model_type")):
        return context
    factors = (
        rope.get("factor") or 1.0
        for rope in _ropes(text.get("rope_scaling") or text.get("rope_parameters"))
        if rope.get("rope_type", rope.get("type")) not in ALREADY_SCALED
    )
    return int(context * next(factors, 1.0))


def _ropes(rope: Any) -> Iterator[dict[str, Any]]:
    """RoPE settings, of the whole model or of each kind of layer."""
    if isinstance(rope, dict):
        by_layer = [settings for settings in rope.values() if isinstance(settings, dict)]
        yield from by_layer or [rope]


def _plain_attention(text: dict[str, Any]) -> bool:
    windows = text.get("sliding_window") and text.get("use_sliding_window", True)
    layers = set(text.get("layer_types") or ["full_attention"])
    return (
        not windows
        and layers == {"full_attention"}
        and not any(text.get(key) for key in OTHER_ATTENTION_KEYS)
    )


def _weight_files(folder: Path) -> list[Path]:
    """The files that vLLM would load: one format, and no second copy of it."""
    for pattern in ("*.safetensors", "*.bin", "*.gguf"):
        files = sorted(folder.glob(pattern))
        if files:
            return [file for file in files if not file.name.startswith("consolidated")] or files
    return []
