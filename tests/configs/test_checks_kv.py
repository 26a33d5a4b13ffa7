"""Each rule about KV blocks refuses what cannot work and lets pass what can."""

from pathlib import Path

import pytest

from configs.checks import kv
from configs.checks.kv import (
    blocks_have_a_kernel,
    chunks_are_whole_blocks,
    fp8_blocks_have_avx512,
    kv_type_is_supported,
    redis_keeps_room_for_the_rest,
    tiers_are_complete,
    tiers_are_in_order,
)
from configs.facts import MachineFacts
from configs.model_folder import Architecture, ModelFacts

BLOCK, DTYPE = "verifiers.kv_cache.block_size", "verifiers.kv_cache.dtype"
DRAM = {"kind": "dram", "size_gib": 1}
DISK = {"kind": "disk", "size_gib": 1, "path": "/kv"}
REDIS = {"kind": "redis"}
NO_AVX512 = {"machine": MachineFacts(memory_bytes=16 << 30, cores=4, avx512=False)}
HEADS_OF_80 = {"target": ModelFacts(Path("/w"), architecture=Architecture(8, 8, 80, 2, 640, 9, 99))}


def gpu(name: str, **changes: str) -> dict:
    """A GPU config with dotted keys changed."""
    return {"hardware": {"kind": "gpu", "gpu_type": name}, **changes}


CASES = [
    (blocks_have_a_kernel, {BLOCK: 48}, BLOCK, "not a multiple of 32", {BLOCK: 64}, {}),
    (blocks_have_a_kernel, {BLOCK: 16}, BLOCK, "use 32", gpu("L4", **{BLOCK: 16}), {}),
    (
        blocks_have_a_kernel,
        gpu("L4", **{BLOCK: 24}),
        BLOCK,
        "as a GPU needs; use 16",
        gpu("L4", **{BLOCK: 48}),
        {},
    ),
    (
        chunks_are_whole_blocks,
        {"kv.shared": True, "kv.chunk_size": 48},
        "kv.chunk_size",
        "not a multiple of the block size, 32; use 32",
        {"kv.shared": True, "kv.chunk_size": 64},
        {},
    ),
    (
        kv_type_is_supported,
        {DTYPE: "bfloat16"},
        DTYPE,
        "use one of auto, fp8",
        {DTYPE: "fp8_e5m2"},
        {},
    ),
    (
        kv_type_is_supported,
        gpu("A100", **{DTYPE: "fp8"}),
        DTYPE,
        "this is type A100; use auto",
        gpu("L40S", **{DTYPE: "fp8"}),
        {},
    ),
    (
        kv_type_is_supported,
        {DTYPE: "fp8"},
        DTYPE,
        "a multiple of 32, and these have 80",
        {DTYPE: "auto"},
        HEADS_OF_80,
    ),
    (
        kv_type_is_supported,
        {
            "drafting.colocated.method": "eagle3",
            "drafting.colocated.draft": {"source": "org/head", "kv_cache_dtype": "nvfp4"},
        },
        "drafting.colocated.draft.kv_cache_dtype",
        "nvfp4 is not supported on a CPU",
        {
            "drafting.colocated.method": "eagle3",
            "drafting.colocated.draft": {"source": "org/head", "kv_cache_dtype": "auto"},
        },
        {},
    ),
    (fp8_blocks_have_avx512, {DTYPE: "fp8"}, DTYPE, "AVX-512", {DTYPE: "auto"}, NO_AVX512),
    (
        fp8_blocks_have_avx512,
        {DTYPE: "fp8"},
        DTYPE,
        "which this machine lacks",
        {DTYPE: "fp8", "redis.url": "redis://elsewhere:6379"},
        NO_AVX512,
    ),
    (
        tiers_are_complete,
        {"kv.tiers": [{"kind": "dram"}]},
        "kv.tiers[0].size_gib",
        "needs its size",
        {"kv.tiers": [DRAM]},
        {},
    ),
    (
        tiers_are_complete,
        {"kv.tiers": [DRAM, {"kind": "disk", "size_gib": 1}]},
        "kv.tiers[1].path",
        "needs a folder",
        {"kv.tiers": [DRAM, DISK]},
        {},
    ),
    (
        redis_keeps_room_for_the_rest,
        {"kv.shared": True, "kv.tiers": [DRAM, REDIS | {"size_gib": 1}]},
        "kv.tiers[1].size_gib",
        "more than the 0.19 that Redis has",
        {
            "kv.shared": True,
            "kv.tiers": [DRAM, REDIS | {"size_gib": 1}],
            "redis.memory_mib": 1400,
        },
        {},
    ),
    (
        tiers_are_complete,
        {"kv.tiers": [DRAM | {"path": "/kv"}]},
        "kv.tiers[0].path",
        "a dram tier has none",
        {"kv.tiers": [DRAM, DISK, REDIS], "kv.shared": True},
        {},
    ),
    (
        tiers_are_in_order,
        {"kv.tiers": [DRAM, DRAM]},
        "kv.tiers[1].kind",
        "keep one",
        {"kv.tiers": [DRAM]},
        {},
    ),
    (
        tiers_are_in_order,
        {"kv.tiers": [REDIS, DRAM]},
        "kv.tiers",
        "put the nearest first",
        {"kv.tiers": [DRAM, REDIS]},
        {},
    ),
    (
        tiers_are_in_order,
        {"kv.shared": True, "kv.tiers": [REDIS]},
        "kv.tiers",
        "have no dram tier",
        {"kv.tiers": [REDIS]},
        {},
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_rule_names_the_key_and_the_remedy(judge, rule, wrong, key, says, right, known) -> None:
    """A rule refuses the wrong config by its key, in words that say what to do."""
    found = dict(judge(wrong, known, rule))
    assert says in found.get(key, "nothing found")


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_config_that_works_passes_all_rules(judge, rule, wrong, key, says, right, known) -> None:
    """With the remedy taken, no rule of any file has anything to say."""
    assert judge(right, known) == []


def test_every_rule_has_a_case() -> None:
    """No rule of this file goes untested."""
    assert {case[0] for case in CASES} == set(kv.RULES)
