"""What a check is: a pure function of a config and the facts, which finds what is wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from configs.facts import Facts
from configs.footprint import architecture_of
from configs.model_folder import Architecture, ModelFacts
from configs.schema import ClusterConfig
from configs.sections.drafting import DraftModelConfig
from configs.sections.verifiers import Dtype, KvCacheDtype, ModelConfig

COLOCATED_DRAFT = "drafting.colocated.draft"
WORKER_DRAFT = "drafting.split.workers.draft"


class Finding(NamedTuple):
    """A key that must change; why, and to what."""

    key: str
    reason: str


Rule = Callable[[ClusterConfig, Facts], Iterator[Finding]]


@dataclass(frozen=True)
class Weights:
    """One model of a config, with what the config says about running it."""

    key: str  # of its section
    model: ModelConfig | DraftModelConfig
    facts: ModelFacts
    on_gpu: bool
    dtype: Dtype  # it computes in
    kv_dtype_key: str
    kv_dtype: KvCacheDtype | None
    ranks_key: str
    ranks: int

    @property
    def architecture(self) -> Architecture | None:
        """Its sizes, where they are known."""
        return architecture_of(self.model, self.facts)


def weights_of(config: ClusterConfig, facts: Facts) -> list[Weights]:
    """The target and what drafts for it."""
    return [target_of(config, facts), *drafts_of(config, facts)]


def target_of(config: ClusterConfig, facts: Facts) -> Weights:
    """The target."""
    return Weights(
        key="model",
        model=config.model,
        facts=facts.target,
        on_gpu=config.hardware.kind == "gpu",
        dtype=config.model.dtype,
        kv_dtype_key="verifiers.kv_cache.dtype",
        kv_dtype=config.verifiers.kv_cache.dtype,
        ranks_key="verifiers.tensor_parallel",
        ranks=config.verifiers.tensor_parallel,
    )


def drafts_of(config: ClusterConfig, facts: Facts) -> list[Weights]:
    """What drafts for the target, colocated or in workers."""
    drafts, colocated, split = [], config.drafting.colocated, config.drafting.split
    if colocated and (draft := colocated.draft):
        on_gpu = config.hardware.kind == "gpu"
        # vLLM computes a colocated draft in the target's type.
        dtype = config.model.dtype
        drafts.append(_draft(COLOCATED_DRAFT, draft, facts.colocated_draft, on_gpu, dtype))
    if split and (draft := split.workers.draft):
        on_gpu = split.workers.gpus > 0
        drafts.append(_draft(WORKER_DRAFT, draft, facts.worker_draft, on_gpu, draft.dtype))
    return drafts


def _draft(
    key: str, draft: DraftModelConfig, facts: ModelFacts, on_gpu: bool, dtype: Dtype
) -> Weights:
    return Weights(
        key=key,
        model=draft,
        facts=facts,
        on_gpu=on_gpu,
        dtype=dtype,
        kv_dtype_key=f"{key}.kv_cache_dtype",
        kv_dtype=draft.kv_cache_dtype,
        ranks_key=f"{key}.tensor_parallel",
        ranks=draft.tensor_parallel,
    )


def shares_vocabulary(config: ClusterConfig, draft: Weights) -> bool:
    """Whether a draft is a model of its own, and so must have the target's vocabulary.

    EAGLE, Medusa and the like are heads of the target and may know fewer tokens.
    """
    colocated = config.drafting.colocated
    is_draft_model = colocated is not None and colocated.method == "draft_model"
    return is_draft_model or draft.key == WORKER_DRAFT
