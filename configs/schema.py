"""Every knob of a paceline cluster, once: unit, range, default and why.

One YAML file describes one cluster and is the same for a laptop, a Serve
application and the Helm chart. A component takes its own section and nothing
else. This file only says what a single value may be; what values mean together
is judged in `configs/checks`, which can name file, key and reason.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    model_validator,
)

from configs.request_class import BATCH

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,40}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
REDIS_URL_PATTERN = r"^rediss?://[^@?\s]+$"
ADDRESS_PATTERN = r"^[A-Za-z0-9.-]+:[0-9]{1,5}$"
PATTERN_WORDS = {
    NAME_PATTERN: "lower-case letters, digits and dashes, a letter first, at most 41 characters",
    VARIABLE_PATTERN: "the name of an environment variable",
    ADDRESS_PATTERN: "HOST:PORT",
    REDIS_URL_PATTERN: "redis://HOST:PORT or rediss://HOST:PORT; a password stands in "
    "`redis.password`, not in the URL",
}

MAX_TOKENS = 100_000_000  # no context is longer; keeps what is computed from it finite

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Port = Annotated[int, Field(ge=1024, le=65535)]

ColocatedMethod = Literal[
    "ngram",
    "ngram_gpu",
    "suffix",
    "draft_model",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "mtp",
    "dflash",
    "dspark",
]
COLOCATED_METHODS: tuple[str, ...] = get_args(ColocatedMethod)
DraftKind = Literal["prompt_lookup", "ngram_index", "model"]
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


def _on_disk(path: Path, info: ValidationInfo) -> Path:
    """`path` with `~` expanded, and beside the config file where it is relative.

    `load_config` gives the file's folder as validation context; a section made in
    code has none, and its relative paths stay relative.
    """
    if not str(path).isprintable():
        raise ValueError("a path consists of printable characters")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home folder for `{path.parts[0]}`") from None
    folder = (info.context or {}).get("folder")
    return Path(os.path.normpath(folder / path)) if folder else path


def _source(source: str, info: ValidationInfo) -> str:
    """`source` as it is, but with a folder (`./x`, `../x`, `~/x`) made a full path."""
    if source.startswith("builtin:"):
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", source.removeprefix("builtin:")):
            raise ValueError("after `builtin:` comes the name of a model, not a path")
        return source
    return str(_on_disk(Path(source), info)) if source.startswith((".", "~", "/")) else source


T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]  # a YAML list
DiskPath = Annotated[Path, Strict(False), AfterValidator(_on_disk)]
Source = Annotated[str, Field(min_length=1), AfterValidator(_source)]


class Section(BaseModel):
    """Frozen, types as written (`"8"` is no number), and a key nobody knows is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True
    )


class SecretRef(Section):
    """Where a secret is kept; the secret itself never stands in a config."""

    # The same as `_exactly_one`, for those who only have the JSON schema.
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "string"}}}
                for name in ("file", "env")
            ]
        }
    )

    file: DiskPath | None = Field(
        None, description="File that holds the secret; surrounding white space is ignored."
    )
    env: str | None = Field(
        None,
        pattern=VARIABLE_PATTERN,
        description="Environment variable that holds the secret.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "SecretRef":
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret is named by exactly one of `file` and `env`")
        return self


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


class ScheduleStep(Section):
    """Draft length while at most `max_batch` sequences run."""

    max_batch: int = Field(ge=1, le=65536, description="Largest batch this step covers, sequences.")
    length: int = Field(ge=0, le=64, description="Draft length, tokens; 0 stops drafting.")


class DraftModelConfig(Section):
    """The weights of a draft model or of an EAGLE, Medusa, ... head."""

    source: Source = Field(description="`builtin:NAME`, a folder, or a hub id.")
    dtype: Dtype = Field("auto", description="Type of the computation.")
    quantization: Quantization | None = Field(None, description="As in `model`.")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Ranks of the draft model.")
    kv_cache_dtype: KvCacheDtype | None = Field(
        None, description="KV cache type of the draft model. None: the target's."
    )
    max_model_len: int | None = Field(
        None, ge=16, le=MAX_TOKENS, description="Drafts stop at this length, tokens."
    )
    shape: ModelShape | None = Field(None, description="As in `model`.")


class WorkerModelConfig(DraftModelConfig):
    """The model of draft workers of kind `model`: vLLM in the worker's own process."""

    lookahead: int = Field(
        8,
        ge=0,
        le=256,
        description="Tokens by which a session is drafted on while its verifier is busy, beyond "
        "what was asked for. 0: drafts only what is asked for.",
    )
    fan_out: int = Field(
        1,
        ge=0,
        le=8,
        description="Likeliest rejections of a session that are prepared for as well, while "
        "nothing else is asked for. 0: none.",
    )
    sessions: int = Field(
        64,
        ge=1,
        le=4096,
        description="Sequences that the model drafts at once, those of `fan_out` included. "
        "Sessions that find no place wait for one.",
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        description="Memory of the draft model's KV cache, GiB a rank. None: 1 GiB on CPU; on "
        "GPU what its part of the GPU leaves.",
    )
    eager: bool = Field(
        False, description="Skip compilation and graphs: starts sooner, drafts slower."
    )


class ColocatedDrafting(Section):
    """Drafts made inside the verifier, by vLLM itself."""

    method: ColocatedMethod = Field(description="vLLM's speculative method.")
    draft: DraftModelConfig | None = Field(
        None, description="Weights; needed by every method but ngram, ngram_gpu, suffix and mtp."
    )
    prompt_lookup_min: int = Field(2, ge=1, le=64, description="Shortest match of `ngram`, tokens.")
    prompt_lookup_max: int = Field(4, ge=1, le=64, description="Longest match of `ngram`, tokens.")
    schedule: Many[ScheduleStep] = Field(
        (), description="Draft length by batch size. Empty: `max_length` at every load."
    )


class NgramConfig(Section):
    """The fleet's n-grams: what any verifier has answered is drafted by every draft worker."""

    sharing: Literal["tenant", "cluster", "off"] = Field(
        "tenant",
        description="Whose texts a request may be drafted from: its own tenant's, everybody's in "
        "the cluster, or nobody's. `off` keeps nothing and exchanges nothing.",
    )
    memory_mib: int = Field(
        128,
        ge=1,
        le=1048576,
        description="Memory of the index, MiB a worker; about 45,000 tokens a MiB. What isn't "
        "used goes first.",
    )
    corpus_mib: int = Field(
        32,
        ge=1,
        le=65536,
        description="Memory for corpora (`paceline corpus`), MiB a worker; bounds what all of "
        "them have together.",
    )
    longest_context: int = Field(
        24, ge=2, le=64, description="Longest context that is compared, tokens."
    )
    ttl_s: float = Field(
        21600,
        ge=1,
        le=31536000,
        description="How long a text is drafted from, seconds. Corpora stay until removed.",
    )
    stream_tokens: int = Field(
        2000000,
        ge=4096,
        le=1000000000,
        description="Most tokens in the Redis stream between the workers (4 bytes each), and so "
        "what a new worker starts with.",
    )


class DraftWorkerConfig(Section):
    """The pool of draft workers."""

    replicas: int = Field(
        1,
        ge=0,
        le=1024,
        description="Number of draft workers; with `autoscaling.max_draft_workers` the fewest.",
    )
    kinds: Many[DraftKind] = Field(
        ("prompt_lookup",), min_length=1, description="Where a worker's drafts come from."
    )
    cpus: float = Field(1, ge=0, description="CPU cores of one worker.")
    gpus: float = Field(0, ge=0, description="GPUs of one worker, 0-1 or whole.")
    resources: dict[str, float] = Field({}, description="Custom Ray resources, for placement.")
    memory_mib: int = Field(
        256, ge=1, le=1048576, description="Memory for the contexts of sessions, MiB a worker."
    )
    ngram: NgramConfig = NgramConfig()
    draft: WorkerModelConfig | None = Field(None, description="The model of kind `model`.")
    env: dict[str, str] = Field({}, description="Environment variables of draft workers.")


class SplitDrafting(Section):
    """Drafts made by draft workers, in processes and on nodes of their own."""

    workers: DraftWorkerConfig = DraftWorkerConfig()
    token: SecretRef | None = Field(
        None,
        description="Secret of at least 16 bytes by which verifiers and draft workers know each "
        "other. None: `paceline up` makes one for a cluster on this machine.",
    )
    shortest_match: int = Field(
        2, ge=1, le=16, description="Prompt lookup: matches of fewer tokens don't count."
    )
    local_lookup: bool = Field(
        True,
        description="Prompt lookup in the verifier itself where no worker's draft is there.",
    )
    ahead: int = Field(
        16,
        ge=0,
        le=192,
        description="Tokens by which a worker's answer may run ahead of the draft that was asked "
        "for. They are the next step's draft if all goes well, and nobody waits for them.",
    )
    wait_fraction: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Longest wait for drafts in one step, as a part of the measured step time.",
    )
    wait_max_ms: float = Field(
        20.0, ge=0, le=1000, description="Longest wait for drafts in one step, whatever it takes."
    )


DraftWish = Literal["auto", "off"] | Annotated[int, Field(ge=0, le=64)]


class GovernorConfig(Section):
    """How long drafts are, decided anew in each step; split drafting only."""

    mode: Literal["auto", "fixed", "off"] = Field(
        "auto",
        description="`auto`: as long as they are expected to save time, often not at all. "
        "`fixed`: always `max_length`. `off`: none, whatever a request asks for.",
    )
    probe_share: float = Field(
        0.01,
        ge=0,
        le=0.1,
        description="Part of step time (0-1) that may go into trying a draft where none would pay, "
        "so that a change is found again. 0: never.",
    )


class SpeculationClasses(Section):
    """Drafts of requests that say nothing themselves, by their class; split drafting only."""

    interactive: DraftWish = Field(
        "auto", description="`auto`: the governor decides. `off`, or a fixed number of tokens."
    )
    batch: DraftWish = Field(
        "auto", description="The class whose drafts are given up first; as `interactive`."
    )


class DraftingConfig(Section):
    """Who guesses the next tokens. Neither `colocated` nor `split`: nobody does."""

    max_length: int = Field(4, ge=1, le=64, description="Longest draft of one step, tokens.")
    governor: GovernorConfig = GovernorConfig()
    classes: SpeculationClasses = SpeculationClasses()
    colocated: ColocatedDrafting | None = None
    split: SplitDrafting | None = None

    @property
    def drafts(self) -> bool:
        """Whether anybody does."""
        return self.colocated is not None or self.split is not None


class KvTier(Section):
    """One tier of shared KV blocks behind the verifiers' own caches."""

    kind: Literal["dram", "disk", "redis"] = Field(description="Where the blocks lie.")
    size_gib: float | None = Field(
        None,
        gt=0,
        description="Capacity, GiB: of each node for `dram` and `disk`, which need it; of what one "
        "node keeps in Redis for `redis`. None there: three quarters of the server's own limit.",
    )
    path: DiskPath | None = Field(None, description="Folder of the `disk` tier.")


class KvConfig(Section):
    """KV blocks shared between verifiers, by one LMCache server on each node (docs/kv.md)."""

    shared: bool = Field(False, description="Run LMCache and wire every verifier to it.")
    chunk_size: int = Field(
        256,
        ge=1,
        le=65536,
        description="Tokens that LMCache moves at once; a multiple of the block size.",
    )
    tiers: Many[KvTier] = Field(
        (KvTier(kind="dram", size_gib=1.0),), description="From the nearest to the farthest."
    )
    eviction: Literal["lru", "arc"] = Field(
        "lru",
        description="What leaves a full `dram` or `disk` tier first: what was used longest ago, "
        "or (ARC) that with an eye on how often.",
    )
    ttl_s: int = Field(
        86400, ge=1, le=31536000, description="How long blocks stay in Redis, seconds."
    )
    fetch: Literal["auto", "always"] = Field(
        "auto",
        description="`auto`: blocks are fetched where that is measured to be faster than computing "
        "them. `always`: wherever they are found.",
    )
    shortest_fetch: int = Field(
        256,
        ge=1,
        le=MAX_TOKENS,
        description="Prompts with fewer tokens left to compute are not looked up, tokens.",
    )
    wait_max_ms: float = Field(
        1000.0,
        gt=0,
        le=60000,
        description="Longest wait of a request for what the tiers hold of it, whatever it would "
        "save; then it is computed.",
    )
    token: SecretRef | None = Field(
        None,
        description="Secret of at least 16 bytes by which blocks in Redis and on disk are known to "
        "be this cluster's. None: that of `drafting.split` or `router`, or the one that "
        "`paceline up` makes.",
    )


class RedisConfig(Section):
    """The cluster's memory: registry, n-gram exchange, rate limits, remote KV."""

    url: str | None = Field(
        None,
        pattern=REDIS_URL_PATTERN,
        description="redis:// or rediss:// without a password. None: `paceline up` starts a "
        "private server on loopback.",
    )
    password: SecretRef | None = Field(None, description="Password of an external server.")
    memory_mib: int = Field(
        256, ge=16, le=16777216, description="Memory of the private server, MiB."
    )


class RouterConfig(Section):
    """Which verifier gets a request."""

    policy: Literal["least_loaded", "prefix_aware"] = Field(
        "least_loaded",
        description="`least_loaded`: fewest requests in flight. `prefix_aware`: soonest first "
        "token, counting the KV blocks that each verifier holds (docs/routing.md); of use where "
        "verifiers are several and prompts begin alike.",
    )
    token: SecretRef | None = Field(
        None,
        description="`prefix_aware` only: secret of at least 16 bytes by which verifiers and "
        "routers know each other. None: that of `drafting.split`, or the one that `paceline up` "
        "makes.",
    )
    index_mib: int = Field(
        256,
        ge=1,
        le=1048576,
        description="`prefix_aware` only: memory of the index of KV blocks, MiB a router. Blocks "
        "that find no room count as not cached.",
    )
    shown_header: Literal["authorization", "x-api-key", "x-session-id"] | None = Field(
        None,
        description="The one request header that HAProxy shows to the router. With keys it must "
        "be the one they come in, or nobody's prefix is known. None: `authorization` where "
        "`front_door.keys` asks for keys, `x-session-id` where it does not.",
    )
    batch_weight: float = Field(
        0.25,
        gt=0,
        le=1,
        description="`prefix_aware` only: what a second before its first token counts for a "
        "request that can wait (`service_tier: flex`), against a second that it costs others.",
    )
    explain: bool = Field(
        False,
        description="Answers carry `x-paceline-route`: which verifier, and what the router "
        "expected there. For debugging: it tells clients how busy verifiers are.",
    )


class AutoscalingConfig(Section):
    """How many verifiers and draft workers there are, by the load (docs/autoscaling.md).

    Left out: as many as `verifiers.replicas` and `drafting.split.workers.replicas` say.
    """

    max_verifiers: int = Field(
        ge=1,
        le=1024,
        description="Most verifiers. The fewest, and how many there are at the start, says "
        "`verifiers.replicas`.",
    )
    max_draft_workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Most draft workers. The fewest says `drafting.split.workers.replicas`, where "
        "0 lets them go while drafts don't pay. None: that number, always.",
    )
    ttft_s: float = Field(
        2.0,
        gt=0,
        le=600,
        description="Target: from a request's arrival to its first token, seconds.",
    )
    tpot_ms: float = Field(
        100.0,
        gt=0,
        le=60000,
        description="Target: time per token after the first, milliseconds.",
    )
    batch_ttft_s: float = Field(
        60.0,
        gt=0,
        le=86400,
        description="The same targets for requests that can wait (`service_tier: flex`): to the "
        "first token, seconds,",
    )
    batch_tpot_ms: float = Field(
        500.0, gt=0, le=60000, description="and time per token after it, milliseconds."
    )
    attainment: float = Field(
        0.95, ge=0.5, le=0.999, description="Part of the requests (0-1) that shall meet both."
    )
    utilization: float = Field(
        0.8,
        gt=0,
        le=0.95,
        description="Part of a verifier's time (0-1) that may be planned with. Queues grow as "
        "u/(1-u): at 0.8 a request waits for four others, at 0.95 for nineteen.",
    )
    window_s: float = Field(
        60.0, ge=5, le=3600, description="Time over which arrivals and lengths are averaged, s."
    )
    keep_s: float = Field(
        120.0,
        ge=5,
        le=86400,
        description="How long fewer must have been enough before any is let go, seconds; at least "
        "`window_s`.",
    )
    cold_start_s: float = Field(
        60.0,
        ge=0,
        le=7200,
        description="From the decision to start a verifier to its first answer, seconds. Replaced "
        "by what is seen once one has been started.",
    )

    def of_class(self, request_class: str) -> tuple[float, float]:
        """Targets of a class of requests: to the first token, and for each after it, seconds."""
        if request_class == BATCH:
            return self.batch_ttft_s, self.batch_tpot_ms / 1000
        return self.ttft_s, self.tpot_ms / 1000


class RayConfig(Section):
    """The Ray cluster that everything runs on."""

    address: str | None = Field(
        None,
        pattern=ADDRESS_PATTERN,
        description="HOST:PORT of a Ray cluster that runs already, for `paceline up` to join. "
        "None: it starts one on this machine, at `ports.ray`.",
    )
    token: SecretRef | None = Field(
        None, description="Secret by which that cluster knows its members (Ray's auth token)."
    )
    on_head: bool | None = Field(
        None,
        description="Whether verifiers and draft workers may run on Ray's head node. None: only "
        "where that is the whole cluster's machine (no `ray.address` and no `redis.url`).",
    )


class FrontDoorConfig(Section):
    """Who may ask, and how much at once."""

    keys: SecretRef | None = Field(
        None,
        description="API keys, one `TENANT KEY` or `TENANT sha256:HEX` a line. None: no key is "
        "asked for and all requests share one domain.",
    )
    domain_salt: SecretRef | None = Field(
        None,
        description="Secret from which tenants' sharing domains are derived, the same on every "
        "verifier. None: derived from the keys themselves.",
    )
    max_body_mib: float = Field(8, gt=0, le=64, description="Largest request body, MiB.")


class PortsConfig(Section):
    """Every port a local cluster listens on."""

    host: str = Field(
        "127.0.0.1",
        description="Address that HAProxy and the replicas' HTTP servers listen on. `0.0.0.0` "
        "opens them to other machines, and is needed where nodes are several.",
    )
    http: Port = Field(8000, description="HAProxy: the OpenAI API.")
    redis: Port = Field(6480, description="The private Redis, loopback.")
    ray: Port = Field(6380, description="Ray's GCS.")
    dashboard: Port | None = Field(
        8265, description="Ray's dashboard, loopback. None: no dashboard, a faster start."
    )
    metrics: Port = Field(8080, description="Prometheus metrics of the node.")
    haproxy_metrics: Port = Field(9101, description="HAProxy's own Prometheus metrics.")
    haproxy_stats: Port = Field(8404, description="HAProxy's statistics page, loopback.")
    replicas_from: Port = Field(30000, description="First HTTP port of replicas.")
    replicas_to: Port = Field(31000, description="Last HTTP port of replicas.")
    drafts_from: Port = Field(31001, description="First port of draft workers.")
    drafts_to: Port = Field(31100, description="Last port of draft workers.")
    kv_from: Port = Field(
        31101, description="First port where verifiers tell routers of their KV blocks."
    )
    kv_to: Port = Field(31200, description="Last port of these.")
    lmcache: Port = Field(6580, description="The node's LMCache server, loopback.")
    lmcache_http: Port = Field(
        6581, description="Its health, state and Prometheus metrics, loopback."
    )


class FoldersConfig(Section):
    """Where a local cluster keeps its files."""

    run: DiskPath = Field(
        Path("/tmp/paceline"),  # noqa: S108  (short on purpose)
        description="Sockets, logs and state, in a folder of the cluster's name; short, because a "
        "socket's path has at most 107 bytes. Emptied by `paceline down`.",
    )
    models: DiskPath = Field(
        Path("~/.cache/paceline/models"), description="Where `builtin:` models are made and kept."
    )


class ClusterConfig(Section):
    """One paceline cluster."""

    name: Name = Field("paceline", description="Names the Serve application and the run folder.")
    model: ModelConfig
    hardware: HardwareConfig = HardwareConfig()
    verifiers: VerifierConfig = VerifierConfig()
    drafting: DraftingConfig = DraftingConfig()
    kv: KvConfig = KvConfig()
    autoscaling: AutoscalingConfig | None = None
    redis: RedisConfig = RedisConfig()
    ray: RayConfig = RayConfig()
    router: RouterConfig = RouterConfig()
    front_door: FrontDoorConfig = FrontDoorConfig()
    ports: PortsConfig = PortsConfig()
    # Made anew each time: its defaults depend on who runs this.
    folders: FoldersConfig = Field(default_factory=FoldersConfig)

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether this is the whole cluster's machine: its private Redis is on loopback."""
        return self.redis.url is None

    @property
    def most_verifiers(self) -> int:
        """How many verifiers there may come to be."""
        return self.autoscaling.max_verifiers if self.autoscaling else self.verifiers.replicas

    @property
    def most_draft_workers(self) -> int:
        """How many draft workers there may come to be; 0 without split drafting."""
        split, scaling = self.drafting.split, self.autoscaling
        if split is None:
            return 0
        return (scaling.max_draft_workers if scaling else None) or split.workers.replicas

    @property
    def may_use_head(self) -> bool:
        """Whether verifiers and draft workers may run on Ray's head node."""
        if self.ray.on_head is None:
            return self.ray.address is None and self.runs_on_this_machine
        return self.ray.on_head

    @property
    def rank_in_engine(self) -> bool:
        """Whether a verifier's only rank runs inside its engine."""
        return self.hardware.kind == "cpu" and self.verifiers.rank_in_engine

    @property
    def shown_header(self) -> str:
        """The one request header that the router sees."""
        return self.router.shown_header or (
            "authorization" if self.front_door.keys else "x-session-id"
        )

    @property
    def block_tokens(self) -> int:
        """Tokens of one KV block: what the config says, or the default of its platform."""
        return self.verifiers.kv_cache.block_size or (32 if self.hardware.kind == "cpu" else 16)


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field of this type holds, alone or as the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)
