"""Each rule about hardware and memory refuses what cannot work and lets pass what can."""

from pathlib import Path

import pytest

from configs.checks import hardware, memory
from configs.checks.hardware import (
    fp8_weights_have_fp8_hardware,
    gpu_type_is_known,
    other_platform_is_not_set_up,
    quantized_weights_can_be_computed,
    ranks_fill_nodes,
)
from configs.checks.memory import (
    cores_are_enough,
    cpu_memory_is_enough,
    dram_tier_holds_a_request,
    one_request_fits,
    weights_fit_gpus,
)
from configs.facts import MachineFacts
from configs.model_folder import Architecture, ModelFacts

# Llama-3.3-70B: 80 layers, 8 KV heads of 128.
LLAMA = {
    "attention_heads": 64,
    "kv_heads": 8,
    "layers": 80,
    "hidden_size": 8192,
    "vocab_size": 128256,
    "max_context": 131072,
    "parameters_billions": 70.6,
}
SMOL = Architecture(9, 3, 64, 30, 576, 49152, 8192)
SMOL_HERE = ModelFacts(Path("/w"), architecture=SMOL, quantization="", weight_bytes=270_000_000)
TP, KIND, TYPE = "verifiers.tensor_parallel", "hardware.kind", "hardware.gpu_type"
KV_GIB = "verifiers.kv_cache.memory_gib"
H100 = {KIND: "gpu", TYPE: "H100", "hardware.gpu_memory_gib": 80, "model.shape": LLAMA}
SMALL_MACHINE = MachineFacts(memory_bytes=2 << 30, cores=2, avx512=True)
QUANTIZED_8_BITS = ModelFacts(Path("/w"), quantization="gptq", quantization_bits=8)
QUANTIZED_4_BITS = ModelFacts(Path("/w"), quantization="gptq", quantization_bits=4)

CASES = [
    (other_platform_is_not_set_up, {TYPE: "H100"}, TYPE, "remove it", {KIND: "cpu"}, {}),
    (
        other_platform_is_not_set_up,
        {KIND: "gpu", "verifiers.threads_bind": "0-1"},
        "verifiers.threads_bind",
        "remove it",
        {"verifiers.threads_bind": "0-1"},
        {},
    ),
    (
        gpu_type_is_known,
        {KIND: "gpu", TYPE: "h100"},
        TYPE,
        "h100 is not known; did you mean H100?",
        {KIND: "gpu", TYPE: "H100"},
        {},
    ),
    (
        gpu_type_is_known,
        {KIND: "gpu", TYPE: "Voodoo2"},
        TYPE,
        "leave it out and give gpu_memory_gib",
        {KIND: "gpu", "hardware.gpu_memory_gib": 48},
        {},
    ),
    (
        fp8_weights_have_fp8_hardware,
        {KIND: "gpu", TYPE: "A100-80G", "model.quantization": "fp8"},
        "model.quantization",
        "this is type A100-80G; take weights in awq",
        {KIND: "gpu", TYPE: "L4", "model.quantization": "fp8"},
        {},
    ),
    (
        fp8_weights_have_fp8_hardware,
        {"model.quantization": "fp8"},
        "model.quantization",
        "this is a CPU",
        {"model.quantization": "awq"},
        {},
    ),
    (
        fp8_weights_have_fp8_hardware,
        {KIND: "gpu", TYPE: "A10G"},
        "model.source",
        "FP8 weights need an Ada",
        {KIND: "gpu", TYPE: "H20"},
        {"target": ModelFacts(Path("/w"), quantization="compressed-tensors", fp8_weights=True)},
    ),
    (
        fp8_weights_have_fp8_hardware,
        {
            **H100,
            TYPE: "A100-80G",
            "drafting.colocated.method": "eagle3",
            "drafting.colocated.draft": {"source": "org/head", "quantization": "fp8"},
        },
        "drafting.colocated.draft.quantization",
        "this is type A100-80G",
        {
            **H100,
            TP: 4,
            "drafting.colocated.method": "eagle3",
            "drafting.colocated.draft": {"source": "org/head", "quantization": "fp8"},
        },
        {},
    ),
    (
        quantized_weights_can_be_computed,
        {"model.quantization": "awq", "model.dtype": "float32"},
        "model.dtype",
        "use bfloat16 or float16",
        {"model.quantization": "awq", "model.dtype": "bfloat16"},
        {},
    ),
    (
        quantized_weights_can_be_computed,
        {"drafting.colocated.method": "ngram"},
        "model.source",
        "have 8 bits, and on a CPU they must have 4",
        {KIND: "gpu"},
        {"target": QUANTIZED_8_BITS},
    ),
    (
        quantized_weights_can_be_computed,
        {"model.dtype": "float32"},
        "model.dtype",
        "weights in gptq are not computed in float32",
        {},
        {"target": QUANTIZED_4_BITS},
    ),
    (
        ranks_fill_nodes,
        {**H100, TP: 16, "hardware.gpus_per_node": 6},
        TP,
        "use a multiple of 6, or at most 6",
        {**H100, TP: 16, "hardware.gpus_per_node": 8},
        {},
    ),
    (weights_fit_gpus, {**H100, TP: 1}, TP, "131.5 GiB of each GPU, and 72.0", {**H100, TP: 4}, {}),
    (
        weights_fit_gpus,
        {**H100, TP: 2, KV_GIB: 20},
        TP,
        "the weights take 65.8 GiB of each GPU, and 60.0 GiB",
        {**H100, TP: 2, KV_GIB: 10, "model.max_model_len": 8192},
        {},
    ),
    (
        one_request_fits,
        {**H100, TP: 4, KV_GIB: 5},
        KV_GIB,
        "131072 tokens needs 10.0 GiB of KV blocks on each rank, and there are 5.0 GiB; raise it, "
        "or lower model.max_model_len to 65536",
        {**H100, TP: 4, KV_GIB: 10},
        {},
    ),
    (
        one_request_fits,
        {**H100, TP: 2},
        TP,
        "use more ranks, or lower",
        {**H100, TP: 2, "model.max_model_len": 16384},
        {},
    ),
    (
        one_request_fits,
        {**H100, TP: 4, KV_GIB: 5},
        KV_GIB,
        "too little memory",
        {**H100, TP: 4, KV_GIB: 5, "verifiers.kv_cache.dtype": "fp8"},
        {},
    ),
    (
        one_request_fits,
        {**H100, "verifiers.pipeline_parallel": 2, TP: 1, KV_GIB: 10},
        KV_GIB,
        "needs 20.0 GiB",
        {**H100, "verifiers.pipeline_parallel": 4, TP: 1, KV_GIB: 10},
        {},
    ),
    (
        cpu_memory_is_enough,
        {"verifiers.replicas": 2},
        "verifiers.replicas",
        "2.5 GiB are needed (2 x weights 0.5 GiB, 2 x KV cache 2.0 GiB), and this machine has 2.0",
        {"verifiers.replicas": 2, KV_GIB: 0.5},
        {"machine": SMALL_MACHINE, "target": SMOL_HERE},
    ),
    (
        cpu_memory_is_enough,
        {"kv.shared": True},
        "verifiers.replicas",
        "shared KV 1.0 GiB",
        {"redis.url": "redis://elsewhere:6379", "kv.shared": True},
        {"machine": SMALL_MACHINE, "target": SMOL_HERE},
    ),
    (
        dram_tier_holds_a_request,
        {"kv.shared": True, "kv.tiers": [{"kind": "dram", "size_gib": 0.1}]},
        "kv.tiers[0].size_gib",
        "one request of 8192 tokens has 0.2 GiB of KV blocks, and there are 0.1 GiB; raise it",
        {"kv.shared": True, "kv.tiers": [{"kind": "dram", "size_gib": 0.2}]},
        {"target": SMOL_HERE},
    ),
    (
        cores_are_enough,
        {"verifiers.replicas": 2, "drafting.split": {}},
        "verifiers.cpus",
        "need 3 cores, and this machine has 2",
        {"verifiers.replicas": 2, "verifiers.cpus": 0.5, "drafting.split": {}},
        {"machine": SMALL_MACHINE},
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
    """No rule of these files goes untested."""
    assert {case[0] for case in CASES} == {*hardware.RULES, *memory.RULES}


def test_memory_is_not_judged_where_attention_keeps_something_else(judge) -> None:
    """Sliding windows and latent attention take less than keys and values of every token."""
    known = ModelFacts(Path("/w"), architecture=SMOL, plain_attention=False)
    changes = {KV_GIB: 0.001}
    assert judge(changes, {"target": known}) == []
    assert judge(changes, {"target": SMOL_HERE}, one_request_fits) != []
