"""From our config to vLLM's engine arguments: a pure translation, no engine started.

Everything vLLM is told stands in this file. What it leaves to others: whether
the values can work together (`configs/checks.py`) and where the weights lie
(`cluster/models.py`, which hands in a path).
"""

from typing import Any

from configs.schema import ClusterConfig
from configs.sections.drafting import ColocatedDrafting, DraftModelConfig

CPU_KV_CACHE_GIB = 1.0
LOOPBACK = "127.0.0.1"
LMCACHE_TIMEOUT_S = 5.0
"""Of messages to LMCache that the engine waits for: at its start, or where LMCache hangs."""
LMCACHE_HEARTBEAT_S = 2.0
"""How soon an engine sees that LMCache is gone, or back."""
GIB = 1 << 30


def engine_args(config: ClusterConfig) -> dict[str, Any]:
    """vLLM's engine and front-end arguments for one verifier.

    Args:
        config: A checked config.

    Returns:
        Keyword arguments as `AsyncEngineArgs` and `FrontendArgs` name them, less
        `model` and `served_model_name`, which Ray Serve LLM sets itself.
    """
    model, verifiers = config.model, config.verifiers
    args: dict[str, Any] = {
        "dtype": model.dtype,
        "trust_remote_code": model.trust_remote_code,
        "tensor_parallel_size": verifiers.tensor_parallel,
        "pipeline_parallel_size": verifiers.pipeline_parallel,
        "enforce_eager": verifiers.eager,
        "seed": verifiers.seed,
        "enable_prefix_caching": verifiers.kv_cache.prefix_caching,
        "kv_cache_dtype": verifiers.kv_cache.dtype,
        "block_size": config.block_tokens,
        # Priorities come from the front door, in a header that it alone sets.
        "scheduling_policy": "priority",
        "enable_prompt_tokens_details": True,
        "worker_extension_cls": "replicas.verifier.worker_extension.WorkerExtension",
    }
    optional = {
        "quantization": model.quantization,
        "max_model_len": model.max_model_len,
        "chat_template": str(model.chat_template) if model.chat_template else None,
        "reasoning_parser": model.reasoning_parser,
        "max_num_seqs": verifiers.max_sequences,
        "max_num_batched_tokens": verifiers.max_batched_tokens,
        "speculative_config": speculative_config(config),
        "kv_transfer_config": kv_transfer_config(config),
    }
    args |= {key: value for key, value in optional.items() if value is not None}
    if "speculative_config" in args:
        # Each finished request tells how many tokens were drafted and accepted.
        args["per_request_spec_decode_metrics"] = "summary"
    if model.tool_call_parser is not None:
        args |= {"enable_auto_tool_choice": True, "tool_call_parser": model.tool_call_parser}
    if model.adapters:
        args |= {
            "enable_lora": True,
            "max_loras": len(model.adapters),
            "max_lora_rank": model.max_lora_rank,
            "lora_modules": [
                {"name": adapter.name, "path": adapter.source} for adapter in model.adapters
            ],
        }
    args |= _memory_args(config)
    return args | verifiers.engine_args


def kv_transfer_config(config: ClusterConfig) -> dict[str, Any] | None:
    """vLLM's `kv_transfer_config`, or None where no KV blocks are shared."""
    if not config.kv.shared:
        return None
    ports, kv = config.ports, config.kv
    return {
        "kv_connector": "SharedKvConnector",
        "kv_connector_module_path": "replicas.verifier.kv_connector",
        "kv_role": "kv_both",
        # What doesn't arrive is computed; by default it would fail the request.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": f"tcp://{LOOPBACK}",
            "lmcache.mp.port": ports.lmcache,
            "lmcache.mp.mq_timeout": LMCACHE_TIMEOUT_S,
            "lmcache.mp.heartbeat_interval": LMCACHE_HEARTBEAT_S,
            "paceline": {
                "always": kv.fetch == "always",
                "shortest_tokens": kv.shortest_fetch,
                "wait_max_s": kv.wait_max_ms / 1000,
                "host_bytes": _tier_bytes(config, "dram", "disk"),
                "storage_bytes": _tier_bytes(config, "redis"),
                "status_url": f"http://{LOOPBACK}:{ports.lmcache_http}/status",
            },
        },
    }


def _tier_bytes(config: ClusterConfig, *kinds: str) -> int:
    """Of all tiers of these kinds; one in Redis that has no size has the private server's."""
    default_gib = config.redis.memory_mib / 1024
    sizes = [tier.size_gib or default_gib for tier in config.kv.tiers if tier.kind in kinds]
    return int(sum(sizes) * GIB)


def speculative_config(config: ClusterConfig) -> dict[str, Any] | None:
    """vLLM's `speculative_config`, or None where nothing is drafted."""
    if config.drafting.split is not None:
        return {
            "method": "custom_class",
            "model": "replicas.verifier.proposer.Proposer",
            "num_speculative_tokens": config.drafting.max_length,
        }
    colocated = config.drafting.colocated
    if colocated is None:
        return None
    spec: dict[str, Any] = {
        "method": colocated.method,
        "num_speculative_tokens": config.drafting.max_length,
    }
    if colocated.method in ("ngram", "ngram_gpu"):
        spec["prompt_lookup_min"] = colocated.prompt_lookup_min
        spec["prompt_lookup_max"] = colocated.prompt_lookup_max
    if colocated.draft is not None:
        spec |= _draft_model_args(colocated.draft)
    if colocated.schedule:
        spec["num_speculative_tokens_per_batch_size"] = schedule_ranges(colocated)
    return spec


def schedule_ranges(colocated: ColocatedDrafting) -> list[tuple[int, int, int]]:
    """The schedule as vLLM takes it: inclusive (first batch, last batch, length)."""
    first, ranges = 1, []
    for step in colocated.schedule:
        ranges.append((first, step.max_batch, step.length))
        first = step.max_batch + 1
    return ranges


def _draft_model_args(draft: DraftModelConfig) -> dict[str, Any]:
    args: dict[str, Any] = {
        "model": draft.source,
        "draft_tensor_parallel_size": draft.tensor_parallel,
    }
    optional = {
        "quantization": draft.quantization,
        "kv_cache_dtype": draft.kv_cache_dtype,
        "max_model_len": draft.max_model_len,
    }
    return args | {key: value for key, value in optional.items() if value is not None}


def _memory_args(config: ClusterConfig) -> dict[str, Any]:
    memory_gib = config.verifiers.kv_cache.memory_gib
    if config.hardware.kind == "cpu":
        memory_gib = memory_gib or CPU_KV_CACHE_GIB
    if memory_gib is not None:
        return {"kv_cache_memory_bytes": int(memory_gib * GIB)}
    return {"gpu_memory_utilization": config.verifiers.gpu_memory_utilization}


def verifier_environment(config: ClusterConfig) -> dict[str, str]:
    """Environment variables of a verifier's processes; the config's own come last."""
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Block hashes must mean the same in every process.
        "PYTHONHASHSEED": "0",
    }
    if config.hardware.kind == "cpu":
        env["VLLM_CPU_OMP_THREADS_BIND"] = config.verifiers.threads_bind or _threads_bind(config)
        # Ray would give each rank one thread, however many cores it has.
        env["OMP_NUM_THREADS"] = str(max(1, int(config.verifiers.cpus)))
    else:
        env["VLLM_USE_RAY_V2_EXECUTOR_BACKEND"] = "1"
    return env | config.verifiers.env


def _threads_bind(config: ClusterConfig) -> str:
    verifiers = config.verifiers
    ranks = config.most_verifiers * verifiers.tensor_parallel * verifiers.pipeline_parallel
    return "auto" if ranks == 1 else "nobind"
