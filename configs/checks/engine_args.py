"""Do vLLM's own arguments and variables say nothing that the config says, or paceline decides?"""

from collections.abc import Iterator

from configs.checks.rule import Finding
from configs.facts import Facts
from configs.schema import ClusterConfig
from configs.wording import did_you_mean

OUR_KEYS = {
    "model": "model.source",
    "served_model_name": "model.name",
    "dtype": "model.dtype",
    "quantization": "model.quantization",
    "max_model_len": "model.max_model_len",
    "chat_template": "model.chat_template",
    "tool_call_parser": "model.tool_call_parser",
    "enable_auto_tool_choice": "model.tool_call_parser",
    "reasoning_parser": "model.reasoning_parser",
    "trust_remote_code": "model.trust_remote_code",
    "enable_lora": "model.adapters",
    "lora_modules": "model.adapters",
    "max_loras": "model.adapters",
    "max_lora_rank": "model.max_lora_rank",
    "data_parallel_size": "verifiers.replicas",
    "tensor_parallel_size": "verifiers.tensor_parallel",
    "pipeline_parallel_size": "verifiers.pipeline_parallel",
    "kv_cache_dtype": "verifiers.kv_cache.dtype",
    "block_size": "verifiers.kv_cache.block_size",
    "kv_cache_memory_bytes": "verifiers.kv_cache.memory_gib",
    "enable_prefix_caching": "verifiers.kv_cache.prefix_caching",
    "gpu_memory_utilization": "verifiers.gpu_memory_utilization",
    "max_num_seqs": "verifiers.max_sequences",
    "max_num_batched_tokens": "verifiers.max_batched_tokens",
    "enforce_eager": "verifiers.eager",
    "seed": "verifiers.seed",
    "speculative_config": "drafting",
    "spec_method": "drafting.colocated.method",
    "spec_model": "drafting.colocated.draft",
    "spec_tokens": "drafting.max_length",
    "kv_transfer_config": "kv",
    "api_key": "front_door.keys",
    "host": "ports",
    "port": "ports",
}
DECIDED = {
    "scheduling_policy": "the front door sets priorities",
    "worker_extension_cls": "drafting has its own",
    "kv_events_config": "the prefix index has its own",
    "distributed_executor_backend": "Ray Serve places the ranks",
    "per_request_spec_decode_metrics": "the request log needs it",
    "enable_prompt_tokens_details": "the request log needs it",
    "uds": "HAProxy must reach the verifier's own port",
}
OUR_KEYS_FOR_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "verifiers.kv_cache.memory_gib",
    "VLLM_CPU_OMP_THREADS_BIND": "verifiers.threads_bind",
}
KEY = "verifiers.engine_args"


def arguments_are_not_ours(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """One setting stands in one place, and what paceline decides is not overruled."""
    for name in config.verifiers.engine_args:
        plain = name.replace("-", "_")
        if ours := OUR_KEYS.get(plain):
            yield Finding(f"{KEY}.{name}", f"is {ours} in this file; set it there")
        if why := DECIDED.get(plain):
            yield Finding(f"{KEY}.{name}", f"is set by paceline: {why}; remove it")


def arguments_exist(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """The installed vLLM has every argument, by this name."""
    known = facts.vllm_arguments
    for name in config.verifiers.engine_args:
        plain = name.replace("-", "_")
        if known is None or name in known or plain in OUR_KEYS or plain in DECIDED:
            continue
        nearest = did_you_mean(plain, known)
        hint = f"did you mean {nearest}?" if nearest else "remove it"
        yield Finding(f"{KEY}.{name}", f"is no engine argument of the installed vLLM; {hint}")


def logits_processors_do_not_meet_drafts(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """vLLM refuses custom logits processors beside speculation."""
    drafts = config.drafting.colocated or config.drafting.split
    if drafts and config.verifiers.engine_args.get("logits_processors"):
        yield Finding(f"{KEY}.logits_processors", "does not go with drafting; remove one of them")


def variables_are_not_ours(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """No environment variable repeats a key either."""
    for name in config.verifiers.env:
        if ours := OUR_KEYS_FOR_VARIABLES.get(name):
            yield Finding(f"verifiers.env.{name}", f"is {ours} in this file; set it there")


RULES = (
    arguments_are_not_ours,
    arguments_exist,
    logits_processors_do_not_meet_drafts,
    variables_are_not_ours,
)
