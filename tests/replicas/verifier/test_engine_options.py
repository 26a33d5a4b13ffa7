"""From our config to vLLM's arguments."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from configs import ClusterConfig, load_config
from replicas.verifier.engine_options import engine_args, verifier_environment

LOCAL = load_config(Path("configs/local.yaml"))


def changed(**sections: Any) -> ClusterConfig:
    """configs/local.yaml with keys of its sections replaced."""
    data = LOCAL.model_dump(mode="json")
    for section, keys in sections.items():
        data[section] = {**(data[section] or {}), **keys}
    return ClusterConfig.model_validate(data)


def test_every_argument_is_one_that_vllm_knows() -> None:
    """Nothing we pass is dropped or refused as unknown."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    known = {field.name for kind in (AsyncEngineArgs, FrontendArgs) for field in fields(kind)}
    config = changed(
        model={
            "quantization": "compressed-tensors",
            "adapters": [{"name": "a", "source": "/x"}],
            "chat_template": "/x.jinja",
            "reasoning_parser": "qwen3",
        },
        verifiers={"max_sequences": 8, "max_batched_tokens": 512},
    )
    assert set(engine_args(config)) <= known


@pytest.mark.parametrize("method", ["eagle3", "mtp", "medusa", "dflash", "draft_model"])
def test_colocated_methods_pass_through(method: str) -> None:
    """Method, weights, quantization and KV type of the draft reach vLLM's speculative config."""
    draft = {
        "source": "/models/draft",
        "quantization": "awq",
        "tensor_parallel": 2,
        "kv_cache_dtype": "fp8",
        "max_model_len": 512,
    }
    config = changed(
        drafting={
            "max_length": 3,
            "split": None,
            "colocated": {"method": method, "draft": draft},
        },
        model={"quantization": "fp8"},
    )
    args = engine_args(config)
    assert args["quantization"] == "fp8"
    assert args["speculative_config"] == {
        "method": method,
        "num_speculative_tokens": 3,
        "model": "/models/draft",
        "draft_tensor_parallel_size": 2,
        "quantization": "awq",
        "kv_cache_dtype": "fp8",
        "max_model_len": 512,
    }


def test_a_schedule_becomes_inclusive_ranges() -> None:
    """Batches 1-4, 5-8 and 9-32, as vLLM's num_speculative_tokens_per_batch_size has them."""
    steps = [{"max_batch": 4, "length": 4}, {"max_batch": 8, "length": 2}]
    steps.append({"max_batch": 32, "length": 0})
    colocated = {"method": "ngram", "schedule": steps}
    config = changed(drafting={"split": None, "colocated": colocated})
    assert engine_args(config)["speculative_config"]["num_speculative_tokens_per_batch_size"] == [
        (1, 4, 4),
        (5, 8, 2),
        (9, 32, 0),
    ]


def test_split_drafting_is_our_proposer() -> None:
    """vLLM loads it by name, with the longest draft it may be given."""
    assert engine_args(LOCAL)["speculative_config"] == {
        "method": "custom_class",
        "model": "replicas.verifier.proposer.Proposer",
        "num_speculative_tokens": 4,
    }


def test_without_drafting_vllm_is_told_of_none() -> None:
    """No speculative config, and no argument that vLLM takes only beside one."""
    args = engine_args(changed(drafting={"split": None}))
    assert "speculative_config" not in args
    assert "per_request_spec_decode_metrics" not in args


def test_shared_kv_is_our_connector_to_the_nodes_server() -> None:
    """What doesn't arrive is computed, and the gate gets what the config says."""
    assert "kv_transfer_config" not in engine_args(changed())
    args = engine_args(
        changed(
            kv={
                "shared": True,
                "shortest_fetch": 512,
                "fetch": "always",
                "wait_max_ms": 250,
                "tiers": [{"kind": "dram", "size_gib": 2}, {"kind": "redis"}],
            },
            ports={"lmcache": 7001, "lmcache_http": 7002},
        )
    )
    told = args["kv_transfer_config"]
    assert told["kv_load_failure_policy"] == "recompute"
    extra = told["kv_connector_extra_config"]
    assert (extra["lmcache.mp.host"], extra["lmcache.mp.port"]) == ("tcp://127.0.0.1", 7001)
    assert extra["paceline"] == {
        "always": True,
        "shortest_tokens": 512,
        "wait_max_s": 0.25,
        "host_bytes": 2 << 30,
        "storage_bytes": 256 << 20,
        "status_url": "http://127.0.0.1:7002/status",
    }


def test_memory_is_fixed_on_a_cpu_and_a_share_on_a_gpu() -> None:
    """GiB become bytes; a GPU takes its share unless a size is given."""
    assert engine_args(LOCAL)["kv_cache_memory_bytes"] == 1 << 30
    gpu = changed(hardware={"kind": "gpu"}, verifiers={"kv_cache": {}})
    assert engine_args(gpu)["gpu_memory_utilization"] == 0.9
    assert "kv_cache_memory_bytes" not in engine_args(gpu)


def test_several_ranks_on_a_cpu_are_not_bound_to_the_same_cores() -> None:
    """vLLM's own binding asserts on a machine with one NUMA node and several engines."""
    assert verifier_environment(LOCAL)["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert verifier_environment(LOCAL)["OMP_NUM_THREADS"] == "2"
    two = changed(verifiers={"replicas": 2, "cpus": 1})
    assert verifier_environment(two)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    may_be_two = changed(autoscaling={"max_verifiers": 2})
    assert verifier_environment(may_be_two)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    own = changed(verifiers={"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}})
    assert verifier_environment(own)["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_block_hashes_mean_the_same_in_every_process() -> None:
    """Python's hash seed is pinned, so that block hashes agree between nodes."""
    assert verifier_environment(LOCAL)["PYTHONHASHSEED"] == "0"
