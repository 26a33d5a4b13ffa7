"""Is there room for weights and KV blocks?

By lower bounds (`configs/footprint.py`): what is refused here cannot work, and what
passes may still be tight.
"""

from collections.abc import Iterator

from configs.checks.rule import WORKER_DRAFT, Finding, drafts_of
from configs.facts import Facts
from configs.footprint import (
    DEFAULT_CPU_KV_GIB,
    GIB,
    context_tokens,
    gpu_memory_bytes,
    kv_bytes_per_token,
    kv_memory_bytes,
    ranks,
    weight_bytes,
)
from configs.schema import ClusterConfig


def weights_fit_gpus(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Each GPU holds its share of the target's weights, and KV blocks beside them."""
    memory, weights = gpu_memory_bytes(config), weight_bytes(config.model, facts.target)
    if config.hardware.kind != "gpu" or memory is None or weights is None:
        return
    kv_gib, share = config.verifiers.kv_cache.memory_gib, weights / ranks(config)
    # A fixed KV cache makes vLLM ignore gpu_memory_utilization.
    usable = memory - kv_gib * GIB if kv_gib else memory * config.verifiers.gpu_memory_utilization
    if share > usable:
        yield Finding(
            "verifiers.tensor_parallel",
            f"too little memory: the weights take {_gib(share)} of each GPU, and {_gib(usable)} of "
            f"its {_gib(memory)} are for them; use more ranks or quantized weights",
        )


def one_request_fits(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """The KV cache of a rank holds one request of the full context."""
    context, memory = context_tokens(config, facts), kv_memory_bytes(config, facts)
    per_token = kv_bytes_per_token(config, facts)
    if context is None or memory is None or per_token is None or memory <= 0:
        return
    block = config.block_tokens
    needed, longest = -(-context // block) * block * per_token, int(memory / per_token)
    if needed > memory:
        rest_of_gpu = config.hardware.kind == "gpu" and not config.verifiers.kv_cache.memory_gib
        remedy = "use more ranks" if rest_of_gpu else "raise it"
        yield Finding(
            "verifiers.tensor_parallel" if rest_of_gpu else "verifiers.kv_cache.memory_gib",
            f"too little memory: one request of {context} tokens needs {_gib(needed)} of KV blocks "
            f"on each rank, and there are {_gib(memory)}; {remedy}, or lower model.max_model_len "
            f"to {longest // block * block}",
        )


def cpu_memory_is_enough(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """This machine's memory holds all verifiers, workers and stores of a CPU cluster."""
    kv, weights = kv_memory_bytes(config, facts), weight_bytes(config.model, facts.target)
    if not _all_on_these_cpus(config) or kv is None or weights is None:
        return
    replicas = config.most_verifiers
    parts = {
        f"{replicas} x weights": replicas * weights,
        f"{replicas} x KV cache": replicas * ranks(config) * kv,
    }
    for draft in drafts_of(config, facts):
        copies = config.most_draft_workers if draft.key == WORKER_DRAFT else replicas
        parts[f"{copies} x draft weights"] = copies * (weight_bytes(draft.model, draft.facts) or 0)
    split = config.drafting.split
    if split and (worker_draft := split.workers.draft):
        copies = config.most_draft_workers * worker_draft.tensor_parallel
        kv_gib = worker_draft.memory_gib or DEFAULT_CPU_KV_GIB
        parts[f"{copies} x draft KV cache"] = copies * kv_gib * GIB
    if config.kv.shared:
        dram = sum(tier.size_gib or 0 for tier in config.kv.tiers if tier.kind == "dram")
        parts["shared KV"] = dram * GIB
    needed, has = sum(parts.values()), facts.machine.memory_bytes
    if needed > has:
        details = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())
        yield Finding(
            "verifiers.replicas",
            f"too little memory: {_gib(needed)} are needed ({details}), and this machine has "
            f"{_gib(has)}; use fewer replicas, or a smaller verifiers.kv_cache.memory_gib",
        )


def dram_tier_holds_a_request(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """What one request of the full context needs fits the memory that LMCache moves it through."""
    context, per_token = context_tokens(config, facts), kv_bytes_per_token(config, facts)
    if not config.kv.shared or context is None or per_token is None:
        return
    needed = context * per_token * ranks(config)
    for index, tier in enumerate(config.kv.tiers):
        if tier.kind == "dram" and tier.size_gib is not None and tier.size_gib * GIB < needed:
            yield Finding(
                f"kv.tiers[{index}].size_gib",
                f"too little memory: one request of {context} tokens has {_gib(needed)} of KV "
                f"blocks, and there are {_gib(tier.size_gib * GIB)}; raise it",
            )


def cores_are_enough(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """This machine's cores hold all processes of a CPU cluster; Ray would wait forever."""
    if not _all_on_these_cpus(config):
        return
    split = config.drafting.split
    needed = config.most_verifiers * ranks(config) * config.verifiers.cpus
    needed += config.most_draft_workers * split.workers.cpus if split else 0
    if needed > facts.machine.cores:
        yield Finding(
            "verifiers.cpus",
            f"verifiers and draft workers need {needed:g} cores, and this machine has "
            f"{facts.machine.cores}; lower it (parts of a core are allowed), or use fewer replicas",
        )


def _all_on_these_cpus(config: ClusterConfig) -> bool:
    return config.hardware.kind == "cpu" and config.runs_on_this_machine


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


RULES = (
    weights_fit_gpus,
    one_request_fits,
    cpu_memory_is_enough,
    dram_tier_holds_a_request,
    cores_are_enough,
)
