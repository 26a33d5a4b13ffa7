"""Can this hardware do what is asked of it?"""

from collections.abc import Iterator

from configs.checks.rule import COLOCATED_DRAFT, Finding, weights_of
from configs.facts import Facts
from configs.hardware import GPU_TYPES
from configs.schema import ClusterConfig
from configs.wording import did_you_mean


def other_platform_is_not_set_up(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Nothing is set that this platform would silently ignore."""
    hardware = config.hardware
    if hardware.kind == "gpu" and config.verifiers.threads_bind is not None:
        yield Finding("verifiers.threads_bind", "is not used by hardware.kind gpu; remove it")
    if hardware.kind == "cpu":
        for name in ("gpu_type", "gpu_memory_gib"):
            if getattr(hardware, name) is not None:
                yield Finding(f"hardware.{name}", "is not used by hardware.kind cpu; remove it")


def gpu_type_is_known(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """The type of GPU is one that can be judged."""
    name = config.hardware.gpu_type
    if name is not None and name not in GPU_TYPES:
        nearest = did_you_mean(name, GPU_TYPES)
        hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(GPU_TYPES)}."
        yield Finding(
            "hardware.gpu_type",
            f"{name} is not known; {hint} For another type, leave it out and give gpu_memory_gib",
        )


def fp8_weights_have_fp8_hardware(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """FP8 weights are computed in FP8."""
    for weights in weights_of(config, facts):
        asked = weights.model.quantization == "fp8"
        if (asked or weights.facts.fp8_weights) and (what := without_fp8(config, weights.on_gpu)):
            yield Finding(
                f"{weights.key}.quantization" if asked else f"{weights.key}.source",
                f"FP8 weights need an Ada, Hopper or newer GPU, and this is {what}; take weights "
                "in awq, gptq or compressed-tensors (INT8)",
            )


def without_fp8(config: ClusterConfig, on_gpu: bool) -> str | None:
    """What the hardware is, if it is known not to compute in FP8."""
    if not on_gpu:
        return "a CPU"
    name = config.hardware.gpu_type or ""
    return f"type {name}" if name in GPU_TYPES and not GPU_TYPES[name].fp8 else None


def quantized_weights_can_be_computed(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """AWQ, GPTQ and FP8 compute in 16 bits; on a CPU, AWQ and GPTQ weights have 4 bits.

    vllm/model_executor/layers/quantization/ `get_supported_act_dtypes` and
    utils/marlin_utils.py `_query_cpu_marlin_supported_quant_types`.
    """
    for weights in weights_of(config, facts):
        method = weights.model.quantization or weights.facts.quantization
        if method in ("awq", "gptq", "fp8") and weights.dtype == "float32":
            key = "model" if weights.key == COLOCATED_DRAFT else weights.key
            yield Finding(
                f"{key}.dtype",
                f"weights in {method} are not computed in float32; use bfloat16 or float16",
            )
        bits = weights.facts.quantization_bits
        if method in ("awq", "gptq") and not weights.on_gpu and bits not in (None, 4):
            yield Finding(
                f"{weights.key}.source",
                f"its {method} weights have {bits} bits, and on a CPU they must have 4; take other "
                "weights",
            )


def ranks_fill_nodes(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A verifier that is wider than a node takes whole nodes."""
    ranks, per_node = config.verifiers.tensor_parallel, config.hardware.gpus_per_node
    if config.hardware.kind == "gpu" and ranks > per_node and ranks % per_node:
        yield Finding(
            "verifiers.tensor_parallel",
            f"{ranks} ranks do not fill nodes of {per_node} GPUs (hardware.gpus_per_node); use a "
            f"multiple of {per_node}, or at most {per_node}",
        )


RULES = (
    other_platform_is_not_set_up,
    gpu_type_is_known,
    fp8_weights_have_fp8_hardware,
    quantized_weights_can_be_computed,
    ranks_fill_nodes,
)
