"""Can the drafts be made where and how the config says, and can the target verify them?"""

from collections.abc import Iterator

from configs.checks.rule import (
    COLOCATED_DRAFT,
    WORKER_DRAFT,
    Finding,
    drafts_of,
    shares_vocabulary,
    target_of,
)
from configs.facts import Facts
from configs.footprint import context_tokens
from configs.schema import ClusterConfig

# Methods that draft from the text alone; `mtp` has its weights inside the target.
WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
WEIGHTS_OPTIONAL = ("mtp",)
# `suffix` needs arctic-inference, a source package that wants the torch of a GPU.
ONLY_ON_GPU = ("ngram_gpu", "suffix")


def one_family(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Drafts are made in the verifier or in workers: an engine has one proposer."""
    if config.drafting.colocated and config.drafting.split:
        yield Finding("drafting", "has both colocated and split; remove one of them")


def method_has_its_weights(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Weights where a method needs them, and only there."""
    colocated = config.drafting.colocated
    if colocated is None or colocated.method in WEIGHTS_OPTIONAL:
        return
    method, weightless = colocated.method, colocated.method in WITHOUT_WEIGHTS
    if colocated.draft is None and not weightless:
        yield Finding(COLOCATED_DRAFT, f"is missing: {method} needs weights; add a draft.source")
    if colocated.draft is not None and weightless:
        yield Finding(COLOCATED_DRAFT, f"is not used: {method} has no weights; remove it")


def method_runs_here(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Some of vLLM's methods exist for GPUs only."""
    colocated = config.drafting.colocated
    if colocated and colocated.method in ONLY_ON_GPU and config.hardware.kind == "cpu":
        yield Finding(
            "drafting.colocated.method", f"{colocated.method} needs a GPU; use ngram on a CPU"
        )


def lookup_has_a_range(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """The shortest match of prompt lookup is not longer than the longest."""
    colocated = config.drafting.colocated
    if colocated and colocated.prompt_lookup_min > colocated.prompt_lookup_max:
        yield Finding(
            "drafting.colocated.prompt_lookup_min",
            f"{colocated.prompt_lookup_min} is more than prompt_lookup_max, "
            f"{colocated.prompt_lookup_max}; lower it or raise the other",
        )


def schedule_is_in_order(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A schedule's batches grow, and its longest draft is `max_length`."""
    colocated, longest = config.drafting.colocated, config.drafting.max_length
    if colocated is None or not colocated.schedule:
        return
    key, last = "drafting.colocated.schedule", 0
    for index, step in enumerate(colocated.schedule):
        if step.max_batch <= last:
            yield Finding(
                f"{key}[{index}].max_batch",
                f"{step.max_batch} does not come after the step before, which covers up to "
                f"{last}; put the steps in order of their batches",
            )
        if step.length > longest:
            yield Finding(
                f"{key}[{index}].length",
                f"{step.length} is more than drafting.max_length, {longest}; lower it, or raise "
                "max_length",
            )
        last = max(last, step.max_batch)
    reached = max(step.length for step in colocated.schedule)
    if 0 < reached < longest:
        yield Finding(
            "drafting.max_length",
            f"{longest} is never reached: the schedule's longest draft has {reached} tokens; "
            f"set it to {reached}",
        )
    if reached == 0:
        yield Finding(key, "never drafts; give a step a length, or remove drafting.colocated")


def classes_wish_what_there_is(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """No class asks for longer drafts than the longest."""
    drafting = config.drafting
    for name, wish in drafting.classes:
        if isinstance(wish, int) and wish > drafting.max_length:
            yield Finding(
                f"drafting.classes.{name}",
                f"{wish} is more than drafting.max_length, {drafting.max_length}; lower it, or "
                "raise max_length",
            )


def vocabularies_are_one(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """A draft model proposes tokens of the target's vocabulary.

    vllm/config/speculative.py `verify_equal_vocab_size_if_draft_model`.
    """
    target = target_of(config, facts).architecture
    for draft in drafts_of(config, facts):
        own = draft.architecture
        if not (target and own and shares_vocabulary(config, draft)):
            continue
        if own.vocab_size != target.vocab_size:
            yield Finding(
                f"{draft.key}.source",
                f"its vocabulary has {own.vocab_size} tokens and the target's "
                f"{target.vocab_size}; take a draft model with the target's tokenizer",
            )


def token_ids_mean_the_same(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """A worker's draft model takes each token id for the same token as the target."""
    draft = next((d for d in drafts_of(config, facts) if d.key == WORKER_DRAFT), None)
    if draft is None or facts.vocabularies is None:
        return
    target, own = facts.vocabularies
    if target != own:
        yield Finding(
            f"{WORKER_DRAFT}.source",
            f"token ids of {draft.model.source} mean something else than those of "
            f"{config.model.source}; take a draft model with the target's tokenizer",
        )


def draft_ranks_fit(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A colocated draft runs on one rank or on all (vllm/config/speculative.py)."""
    colocated, target_ranks = config.drafting.colocated, config.verifiers.tensor_parallel
    if colocated is None or colocated.draft is None:
        return
    method, ranks = colocated.method, colocated.draft.tensor_parallel
    possible = {1} if method == "mlp_speculator" else {1, target_ranks}
    if ranks not in possible:
        options = " or ".join(map(str, sorted(possible)))
        yield Finding(
            f"{COLOCATED_DRAFT}.tensor_parallel",
            f"a colocated {method} cannot run on {ranks} ranks; use {options}",
        )


def draft_computes_like_the_target(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """vLLM gives a colocated draft the target's dtype, whatever is asked."""
    colocated = config.drafting.colocated
    if colocated and colocated.draft and colocated.draft.dtype not in ("auto", config.model.dtype):
        yield Finding(
            f"{COLOCATED_DRAFT}.dtype",
            f"{colocated.draft.dtype} is not used: a colocated draft computes in the target's "
            f"type, {config.model.dtype}; leave it out",
        )


def draft_length_fits(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """A draft model's own limit is within its weights' and the target's."""
    for draft in drafts_of(config, facts):
        length, own = draft.model.max_model_len, draft.architecture
        limits = {
            "the target's limit": context_tokens(config, facts),
            "what its weights were made for": own.max_context if own else None,
        }
        for name, limit in limits.items():
            if length and limit and length > limit:
                yield Finding(
                    f"{draft.key}.max_model_len",
                    f"{length} tokens are more than {name}, {limit}; use at most {limit}",
                )


def worker_has_what_it_needs(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A draft worker's kinds, weights and GPUs go together."""
    if config.drafting.split is None:
        return
    key, workers = "drafting.split.workers", config.drafting.split.workers
    if "model" in workers.kinds and workers.draft is None:
        yield Finding(f"{key}.draft", "is missing: kind model needs weights; add the section")
    if "model" not in workers.kinds and workers.draft is not None:
        yield Finding(f"{key}.draft", "is not used; remove it, or add `model` to kinds")
    for index, kind in enumerate(workers.kinds):
        if kind in workers.kinds[:index]:
            yield Finding(f"{key}.kinds[{index}]", f"{kind} is listed twice; remove one")
    if workers.gpus > 1 and workers.gpus != int(workers.gpus):
        yield Finding(f"{key}.gpus", f"{workers.gpus} is neither a part of one GPU nor whole GPUs")
    if workers.gpus > 0 and config.hardware.kind == "cpu":
        yield Finding(f"{key}.gpus", "there are none on hardware.kind cpu; set it to 0")
    elif workers.gpus > 0 and "model" not in workers.kinds:
        yield Finding(f"{key}.gpus", "only kind model uses a GPU; set it to 0")
    elif (
        workers.gpus > 0 and workers.draft and max(1, workers.gpus) < workers.draft.tensor_parallel
    ):
        yield Finding(
            f"{key}.gpus",
            f"{workers.gpus:g} GPUs are too few for draft.tensor_parallel "
            f"{workers.draft.tensor_parallel}; each rank has its own",
        )


def defaults_can_be_verified(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """No sampling default of the weights is one that vLLM refuses beside drafts.

    vllm/config/model.py `get_diff_sampling_param`, vllm/sampling_params.py.
    """
    drafts = config.drafting.colocated or config.drafting.split
    overridden = "generation_config" in config.verifiers.engine_args
    if drafts and facts.target.default_min_p and not overridden:
        yield Finding(
            "model.source",
            f"its generation_config.json sets min_p to {facts.target.default_min_p:g} for every "
            "request, which vLLM refuses beside drafts; set verifiers.engine_args."
            "generation_config to vllm, or remove drafting",
        )


def ngrams_fit_into_redis(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """The stream of the fleet's n-grams and full corpora take at most half of a private Redis."""
    split = config.drafting.split
    if split is None or "ngram_index" not in split.workers.kinds or config.redis.url is not None:
        return
    ngram = split.workers.ngram
    if ngram.sharing == "off":
        return
    # A token has 4 bytes there, and about 24 in a worker's index.
    needed_mib = (4 * ngram.stream_tokens >> 20) + ngram.corpus_mib // 6
    if needed_mib > config.redis.memory_mib // 2:
        yield Finding(
            "drafting.split.workers.ngram.stream_tokens",
            f"stream and corpora need {needed_mib} MiB, more than half of redis.memory_mib, "
            f"{config.redis.memory_mib}; raise that to {2 * needed_mib}, or lower this",
        )


RULES = (
    one_family,
    method_has_its_weights,
    method_runs_here,
    lookup_has_a_range,
    schedule_is_in_order,
    classes_wish_what_there_is,
    vocabularies_are_one,
    token_ids_mean_the_same,
    draft_ranks_fit,
    draft_computes_like_the_target,
    draft_length_fits,
    worker_has_what_it_needs,
    defaults_can_be_verified,
    ngrams_fit_into_redis,
)
