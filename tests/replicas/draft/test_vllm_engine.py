"""What vLLM is told of a draft model."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_llama

from configs.schema import ClusterConfig
from replicas.draft.model_drafter import make_model
from replicas.draft.vllm_engine import draft_engine_args
from replicas.draft.worker import draft_worker_environment
from replicas.errors import OtherVocabulary


def config(draft: dict[str, Any], **workers: Any) -> ClusterConfig:
    """Workers of kind `model`."""
    section = {"kinds": ["model"], "draft": {"source": "org/draft", **draft}, **workers}
    return ClusterConfig.model_validate(
        {
            "model": {"name": "m", "source": "org/target", "max_model_len": 4096},
            "drafting": {"split": {"workers": section}},
        }
    )


def test_the_config_reaches_vllm() -> None:
    """Dtype, quantization, ranks, sessions and memory are as they are asked for."""
    draft = {
        "dtype": "float16",
        "quantization": "awq",
        "tensor_parallel": 2,
        "sessions": 48,
        "memory_gib": 2.0,
        "eager": True,
    }
    args = draft_engine_args(config(draft), "/models/draft")
    expected = {
        "model": "/models/draft",
        "dtype": "float16",
        "quantization": "awq",
        "tensor_parallel_size": 2,
        "max_num_seqs": 48,
        "kv_cache_memory_bytes": 2 << 30,
        "enforce_eager": True,
        "enable_prefix_caching": True,
    }
    assert expected.items() <= args.items()
    assert "distributed_executor_backend" not in args


def test_memory_is_a_fixed_part_of_a_cpu_and_a_share_of_a_gpu() -> None:
    """A worker with a quarter of a GPU fills no more than that."""
    assert draft_engine_args(config({}), "d")["kv_cache_memory_bytes"] == 1 << 30
    args = draft_engine_args(config({}, gpus=0.25), "d")
    assert args["gpu_memory_utilization"] == pytest.approx(0.225)
    assert "kv_cache_memory_bytes" not in args


def test_texts_are_as_long_as_both_models_can(tmp_path: Path) -> None:
    """The target's limit, or the draft model's own where that is shorter, or what is asked for."""
    short = str(make_tiny_llama(tmp_path / "short", max_context=512))
    assert draft_engine_args(config({}), "org/draft")["max_model_len"] == 4096
    assert draft_engine_args(config({}), short)["max_model_len"] == 512
    assert draft_engine_args(config({"max_model_len": 128}), short)["max_model_len"] == 128


def test_only_workers_with_a_model_get_its_environment() -> None:
    """Their engine runs in their own process; what the config says comes last."""
    env = draft_worker_environment(config({}, env={"VLLM_CPU_OMP_THREADS_BIND": "3"}))
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "3"
    other = ClusterConfig.model_validate(
        {"model": {"name": "m", "source": "s"}, "drafting": {"split": {}}}
    )
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in draft_worker_environment(other)


def test_a_model_with_other_token_ids_is_refused_with_both_names(tmp_path: Path) -> None:
    """Before it is loaded, and so before the worker could announce itself."""
    target = str(make_tiny_llama(tmp_path / "target"))
    same = str(make_tiny_llama(tmp_path / "same", layers=1))
    other = str(make_tiny_llama(tmp_path / "other", vocab_size=600))
    assert make_model(config({}), same, target, 512) is not None
    with pytest.raises(OtherVocabulary, match=r"other mean something else than those of .*target"):
        make_model(config({}), other, target, 512)
