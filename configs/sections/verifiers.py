"""The model, and who serves it."""

from typing import Any, Literal

from pydantic import Field

from configs.sections.values import MAX_TOKENS, DiskPath, Many, Section, Source

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["awq", "gptq", "fp8", "compressed-tensors"]
# vLLM's CacheDType, vllm/config/cache.py (0.32).
KvCacheDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
]
# vLLM's MaxLoRARanks, vllm/config/lora.py (0.32).
LoraRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]


class ModelShape(Section):
    """Facts about weights that are not on this machine.

    `paceline check` needs them. Where the weights are on this machine, their own
    config.json is read instead and must agree.
    """

    attention_heads: int = Field(ge=1, le=65536, description="Query heads; TP must divide them.")
    kv_heads: int = Field(
        ge=1, le=65536, description="Key/value heads; TP divides them, or they divide TP."
    )
    head_dim: int | None = Field(
        None, ge=1, le=65536, description="Width of one head. None: hidden_size / attention_heads."
    )
    layers: int = Field(ge=1, le=65536, description="Decoder layers; PP must not exceed them.")
    hidden_size: int = Field(ge=1, le=1048576, description="Width of the residual stream.")
    vocab_size: int = Field(ge=1, le=16777216, description="Tokens in the vocabulary.")
    max_context: int = Field(
        ge=1, le=MAX_TOKENS, description="Longest context the weights were made for, tokens."
    )
    parameters_billions: float = Field(
        gt=0, le=100000, description="Weights, in billions of parameters."
    )


class AdapterConfig(Section):
    """A LoRA adapter that is loaded at start and asked for by `model` name."""

    name: str = Field(min_length=1, max_length=128, description="What clients send as `model`.")
    source: Source = Field(description="Folder (or hub id) of the adapter's weights.")


class ModelConfig(Section):
    """The target model: the one whose answers clients get."""

    name: str = Field(min_length=1, max_length=128, description="What clients send as `model`.")
    source: Source = Field(
        description="`builtin:NAME` (made by `make serve`, see cluster/models.py), a folder, or a "
        "hub id. The same on every node.",
    )
    dtype: Dtype = Field("auto", description="Type of the computation; `auto` takes the weights'.")
    quantization: Quantization | None = Field(
        None,
        description="AWQ/GPTQ (W4A16), FP8, or compressed-tensors (INT8 W8A8 and others). None "
        "reads it from the weights' own config.",
    )
    max_model_len: int | None = Field(
        None,
        ge=16,
        le=MAX_TOKENS,
        description="Longest prompt plus answer, tokens. None: the model's own limit.",
    )
    chat_template: DiskPath | None = Field(
        None, description="Jinja file used instead of the model's own chat template."
    )
    tool_call_parser: str | None = Field(
        None, description="vLLM tool parser (`hermes`, `llama3_json`, ...); enables tool calls."
    )
    reasoning_parser: str | None = Field(None, description="vLLM reasoning parser.")
    trust_remote_code: bool = Field(
        False, description="Let the model's own Python code run. Off: weights are data."
    )
    adapters: Many[AdapterConfig] = Field((), description="Static LoRA adapters.")
    max_lora_rank: LoraRank = Field(16, description="Largest rank among the adapters.")
    shape: ModelShape | None = Field(
        None, description="Facts for `paceline check` where the weights are not on this machine."
    )


class HardwareConfig(Section):
    """What the verifiers run on."""

    kind: Literal["cpu", "gpu"] = Field("gpu", description="vLLM's platform.")
    gpu_type: str | None = Field(
        None,
        description="Ray's accelerator name (`H100`, `A100-80G`, `L4`, ...): placement, and what "
        "the hardware can do.",
    )
    gpu_memory_gib: float | None = Field(
        None, gt=0, description="Memory of one GPU, GiB, where the type does not say it."
    )
    gpus_per_node: int = Field(8, ge=1, le=64, description="GPUs of one node.")


class KvCacheConfig(Section):
    """The paged KV cache of one verifier rank."""

    dtype: KvCacheDtype = Field("auto", description="vLLM's KV cache type; `auto`: the model's.")
    block_size: int | None = Field(
        None, ge=1, le=1024, description="Tokens of one block. None: 32 on CPU, 16 on GPU."
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        description="Fixed size per rank, GiB. None: on CPU 1 GiB, on GPU what "
        "gpu_memory_utilization leaves.",
    )
    prefix_caching: bool = Field(True, description="Reuse the blocks of equal prefixes.")


class VerifierConfig(Section):
    """Target verifier replicas: vLLM engines that check drafts and answer."""

    replicas: int = Field(
        1, ge=1, le=1024, description="Number of verifiers; with `autoscaling` the fewest."
    )
    tensor_parallel: int = Field(1, ge=1, le=64, description="Ranks that share each layer (TP).")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="Groups of layers in a row (PP).")
    cpus: float = Field(
        1, gt=0, description="CPU cores that Ray sets aside for one rank (and its threads, on CPU)."
    )
    resources: dict[str, float] = Field(
        {}, description="Custom Ray resources of one rank, to place verifiers on chosen nodes."
    )
    kv_cache: KvCacheConfig = KvCacheConfig()
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Part of a GPU's memory that vLLM may fill."
    )
    max_sequences: int | None = Field(
        None, ge=1, le=65536, description="Most sequences in one step. None: vLLM's default."
    )
    max_batched_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS,
        description="Most tokens in one step (chunked prefill). None: vLLM's default.",
    )
    eager: bool = Field(
        False, description="Skip compilation and graphs: starts sooner, decodes slower."
    )
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of requests that bring none.")
    threads_bind: str | None = Field(
        None,
        description="CPU only: cores of each rank, as VLLM_CPU_OMP_THREADS_BIND takes them. None: "
        "`auto` for a single rank on the machine, `nobind` for more.",
    )
    rank_in_engine: bool = Field(
        True,
        description="CPU only: run a single rank inside the engine's process. vLLM by itself gives "
        "it a process of its own, to bind its threads, and then the engine spins on a core while "
        "it waits; inside, our measurement was half again as fast (docs/benchmarks.md).",
    )
    start_timeout_s: int = Field(
        1800, ge=10, description="How long a verifier may take to load before it counts as failed."
    )
    start_attempts: int = Field(
        2, ge=1, le=20, description="Failed starts before the cluster is given up."
    )
    longest_stream_s: int = Field(
        600, ge=1, description="How long a leaving verifier waits for its streams to end."
    )
    drain_s: int = Field(
        5, ge=0, description="How long a leaving verifier stays reachable after it left the router."
    )
    engine_args: dict[str, Any] = Field(
        {},
        description="More vLLM engine arguments, passed through as they are. Refused where a key "
        "of this file says the same.",
    )
    env: dict[str, str] = Field({}, description="Environment variables of verifier processes.")
