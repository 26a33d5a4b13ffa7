"""Who guesses, and how much."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from configs.sections.values import MAX_TOKENS, Many, SecretRef, Section, Source
from configs.sections.verifiers import Dtype, KvCacheDtype, ModelShape, Quantization

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
        4,
        ge=0,
        le=8,
        description="Likeliest rejections of a session that are prepared for as well, where that "
        "outweighs what it makes later. 0: none.",
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
        le=8,
        description="Longest wait for drafts in one step, as a part of the measured step time. "
        "More than 1 may pay for a draft model that is mostly right.",
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
    longest_step: float | None = Field(
        None,
        ge=1,
        le=100,
        description="How long a step with drafts may take, as a multiple of the same step without: "
        "bounds the time between two chunks of a stream, at the price of throughput. 1.1: a tenth "
        "longer at most. None: as long as drafts pay.",
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
