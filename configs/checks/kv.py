"""Can the KV blocks be kept, and shared, as the config says?"""

from collections.abc import Iterator

from configs.checks.hardware import without_fp8
from configs.checks.rule import Finding, weights_of
from configs.facts import Facts
from configs.schema import ClusterConfig

# CPUAttentionBackend.supported_kv_cache_dtypes, vllm/v1/attention/backends/cpu_attn.py (0.32).
CPU_KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
# Sizes that the attention kernels are built for: cpu_attn.py and triton_attn.py there.
BLOCK_UNIT = {"cpu": 32, "gpu": 16}
NEAREST_FIRST = ("dram", "disk", "redis")
REDIS_SHARE = 0.75
"""Of a Redis server's memory that KV blocks may take."""


def blocks_have_a_kernel(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Attention kernels read whole units of tokens."""
    unit, size = BLOCK_UNIT[config.hardware.kind], config.block_tokens
    if size % unit:
        yield Finding(
            "verifiers.kv_cache.block_size",
            f"{size} is not a multiple of {unit}, as a {config.hardware.kind.upper()} needs; use "
            f"{max(unit, size - size % unit)}",
        )


def chunks_are_whole_blocks(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """LMCache moves whole blocks."""
    chunk, block = config.kv.chunk_size, config.block_tokens
    if config.kv.shared and chunk % block:
        nearest = max(1, chunk // block) * block
        yield Finding(
            "kv.chunk_size", f"{chunk} is not a multiple of the block size, {block}; use {nearest}"
        )


def kv_type_is_supported(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """The attention kernels of this hardware read KV blocks of this type."""
    for weights in weights_of(config, facts):
        dtype, sizes = weights.kv_dtype, weights.architecture
        if dtype is None:
            continue
        if weights.on_gpu:
            if dtype.startswith("fp8") and (what := without_fp8(config, on_gpu=True)):
                yield Finding(
                    weights.kv_dtype_key,
                    f"{dtype} needs an Ada, Hopper or newer GPU, and this is {what}; use auto",
                )
        elif dtype not in CPU_KV_DTYPES:
            yield Finding(
                weights.kv_dtype_key,
                f"{dtype} is not supported on a CPU; use one of {', '.join(CPU_KV_DTYPES)}",
            )
        elif dtype.startswith("fp8") and sizes and sizes.head_dim % 32:
            yield Finding(
                weights.kv_dtype_key,
                f"{dtype} on a CPU needs heads of a multiple of 32, and these have "
                f"{sizes.head_dim}; use auto",
            )


def fp8_blocks_have_avx512(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """On this machine's CPU, FP8 blocks need AVX-512 (cpu_attn.py `_get_attn_isa`)."""
    if not config.runs_on_this_machine or facts.machine.avx512:
        return
    for weights in weights_of(config, facts):
        if not weights.on_gpu and weights.kv_dtype and weights.kv_dtype.startswith("fp8"):
            yield Finding(
                weights.kv_dtype_key,
                f"{weights.kv_dtype} on a CPU needs AVX-512, which this machine lacks; use auto",
            )


def tiers_are_complete(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Each tier has what its kind needs and nothing that it would ignore."""
    for index, tier in enumerate(config.kv.tiers):
        key = f"kv.tiers[{index}]"
        if tier.kind != "redis" and tier.size_gib is None:
            yield Finding(f"{key}.size_gib", f"is missing: a {tier.kind} tier needs its size")
        if tier.kind == "disk" and tier.path is None:
            yield Finding(f"{key}.path", "is missing: a disk tier needs a folder")
        if tier.kind != "disk" and tier.path is not None:
            yield Finding(f"{key}.path", f"is not used: a {tier.kind} tier has none; remove it")


def tiers_are_in_order(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """One tier of each kind, from the nearest to the farthest, the first in memory."""
    kinds = [tier.kind for tier in config.kv.tiers]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            yield Finding(f"kv.tiers[{index}].kind", f"there is a {kind} tier already; keep one")
    if kinds != sorted(kinds, key=NEAREST_FIRST.index):
        yield Finding(
            "kv.tiers",
            f"are {', '.join(kinds)}; put the nearest first: {', '.join(NEAREST_FIRST)}",
        )
    if config.kv.shared and "dram" not in kinds:
        yield Finding(
            "kv.tiers", "have no dram tier, through which LMCache moves all blocks; add one"
        )


def redis_keeps_room_for_the_rest(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Blocks leave the private Redis a quarter: the registry and n-grams are there, too."""
    room_gib = REDIS_SHARE * config.redis.memory_mib / 1024
    for index, tier in enumerate(config.kv.tiers):
        if tier.kind != "redis" or not config.kv.shared or not config.runs_on_this_machine:
            continue
        if tier.size_gib is not None and tier.size_gib > room_gib:
            yield Finding(
                f"kv.tiers[{index}].size_gib",
                f"{tier.size_gib:g} GiB are more than the {room_gib:.2f} that Redis has for them; "
                f"lower it, or raise redis.memory_mib",
            )


RULES = (
    blocks_have_a_kernel,
    chunks_are_whole_blocks,
    kv_type_is_supported,
    fp8_blocks_have_avx512,
    tiers_are_complete,
    tiers_are_in_order,
    redis_keeps_room_for_the_rest,
)
