"""How much memory weights and KV blocks take, as far as sizes are known.

Lower bounds: activations, scales of quantized values and fragmentation come on top.
So what does not fit by this arithmetic does not fit.
"""

import math

from configs.facts import Facts
from configs.hardware import GPU_TYPES
from configs.model_folder import Architecture, ModelFacts
from configs.schema import ClusterConfig
from configs.sections.drafting import DraftModelConfig
from configs.sections.verifiers import Dtype, KvCacheDtype, ModelConfig

GIB = 1 << 30
DEFAULT_CPU_KV_GIB = 1.0
BYTES_OF_WEIGHT = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "compressed-tensors": 0.5}
BYTES_OF_KV: dict[KvCacheDtype, float] = {
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "fp8_ds_mla": 1,
    "fp8_per_token_head": 1,
    "int8_per_token_head": 1,
    "turboquant_k8v4": 6 / 8,
    "turboquant_4bit_nc": 4 / 8,
    "turboquant_k3v4_nc": 3.5 / 8,
    "turboquant_3bit_nc": 3 / 8,
    "ultraquant_4bit": 4 / 8,
    "int4_per_token_head": 4 / 8,
    "nvfp4": 4 / 8,
    "nvfp4_4over6": 4 / 8,
    "nvfp4_ds_mla": 4 / 8,
}


def architecture_of(
    model: ModelConfig | DraftModelConfig, facts: ModelFacts
) -> Architecture | None:
    """The model's sizes: from its own config.json where that is here, else from its `shape`."""
    return facts.architecture or (Architecture.of_shape(model.shape) if model.shape else None)


def weight_bytes(model: ModelConfig | DraftModelConfig, facts: ModelFacts) -> float | None:
    """Bytes of all weights once loaded; None where neither files nor `shape` are there."""
    computed = dtype_bytes(model.dtype)
    wanted = BYTES_OF_WEIGHT[model.quantization] if model.quantization else computed
    if facts.weight_bytes is not None:
        if facts.quantization != "":
            return facts.weight_bytes
        return facts.weight_bytes * wanted / (facts.dtype_bytes or computed)
    return model.shape.parameters_billions * 1e9 * wanted if model.shape else None


def dtype_bytes(dtype: Dtype) -> int:
    """Bytes of one computed number; vLLM's `auto` never computes in float32."""
    return 4 if dtype == "float32" else 2


def context_tokens(config: ClusterConfig, facts: Facts) -> int | None:
    """Longest prompt plus answer, tokens: the config's limit, else the model's own."""
    architecture = architecture_of(config.model, facts.target)
    return config.model.max_model_len or (architecture.max_context if architecture else None)


def kv_bytes_per_token(config: ClusterConfig, facts: Facts) -> float | None:
    """Bytes that one token's keys and values take on one verifier rank.

    `2 * layers * kv_heads * head_dim * bytes`, with layers shared by pipeline stages and
    heads by tensor-parallel ranks, at least one head each (vLLM repeats them).

    Returns:
        None where the sizes are not known, or attention keeps something else than keys
        and values of every token in every layer.
    """
    architecture = architecture_of(config.model, facts.target)
    if architecture is None or not facts.target.plain_attention:
        return None
    verifiers = config.verifiers
    layers = math.ceil(architecture.layers / verifiers.pipeline_parallel)
    heads = max(1, architecture.kv_heads // verifiers.tensor_parallel)
    number = BYTES_OF_KV.get(verifiers.kv_cache.dtype, dtype_bytes(config.model.dtype))
    return 2 * layers * heads * architecture.head_dim * number


def kv_memory_bytes(config: ClusterConfig, facts: Facts) -> float | None:
    """Bytes for KV blocks on one verifier rank; None where a GPU's rest is not known."""
    verifiers = config.verifiers
    if verifiers.kv_cache.memory_gib is not None:
        return verifiers.kv_cache.memory_gib * GIB
    if config.hardware.kind == "cpu":
        return DEFAULT_CPU_KV_GIB * GIB
    memory, weights = gpu_memory_bytes(config), weight_bytes(config.model, facts.target)
    if memory is None or weights is None:
        return None
    return memory * verifiers.gpu_memory_utilization - weights / ranks(config)


def gpu_memory_bytes(config: ClusterConfig) -> float | None:
    """Bytes of one GPU's memory, stated or known from its type."""
    hardware = config.hardware
    if hardware.gpu_memory_gib is not None:
        return hardware.gpu_memory_gib * GIB
    known = GPU_TYPES.get(hardware.gpu_type or "")
    return known.memory_gib * GIB if known else None


def ranks(config: ClusterConfig) -> int:
    """Processes (on GPU hardware: GPUs) of one verifier."""
    return config.verifiers.tensor_parallel * config.verifiers.pipeline_parallel
