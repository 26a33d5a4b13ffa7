"""Are the models what the config says they are, and can they be split as asked?"""

from collections.abc import Iterator

from configs.checks.rule import Finding, drafts_of, shares_vocabulary, target_of, weights_of
from configs.facts import Facts
from configs.model_folder import Architecture
from configs.schema import ClusterConfig


def ranks_share_heads(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Tensor-parallel ranks share the heads evenly; KV heads may be repeated, evenly too.

    vllm/config/model.py `verify_with_parallel_config`, vllm/model_executor/models/llama.py.
    """
    for weights in weights_of(config, facts):
        if (sizes := weights.architecture) is None:
            continue
        heads, kv_heads = sizes.attention_heads, sizes.kv_heads
        possible = [
            n for n in range(1, 65) if not heads % n and (not kv_heads % n or not n % kv_heads)
        ]
        if weights.ranks not in possible:
            yield Finding(
                weights.ranks_key,
                f"{weights.ranks} ranks cannot share {heads} attention heads and {kv_heads} KV "
                f"heads evenly; use one of {', '.join(map(str, possible))}",
            )


def stages_have_layers(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Every pipeline stage has a layer."""
    sizes, stages = target_of(config, facts).architecture, config.verifiers.pipeline_parallel
    if sizes and stages > sizes.layers:
        yield Finding(
            "verifiers.pipeline_parallel",
            f"{stages} stages cannot share {sizes.layers} layers; use at most {sizes.layers}",
        )


def sizes_are_known(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Where heads or vocabularies decide, something says how many there are."""
    target = target_of(config, facts)
    drafts = [draft for draft in drafts_of(config, facts) if shares_vocabulary(config, draft)]
    purposes = ["tensor_parallel divides its heads"] if target.ranks > 1 else []
    purposes += ["the draft model has its vocabulary"] if drafts else []
    if purposes and target.architecture is None:
        yield _size_is_unknown(target.key, " and ".join(purposes))
    for draft in drafts:
        if draft.architecture is None:
            yield _size_is_unknown(draft.key, "it has the target's vocabulary")


def _size_is_unknown(key: str, purpose: str) -> Finding:
    return Finding(
        f"{key}.shape",
        f"is missing: no config.json of the weights is here, so nothing says whether {purpose}; "
        "add the section, with the numbers of that config.json",
    )


def shape_is_that_of_the_weights(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """A `shape` says the same as the config.json that is here."""
    for weights in weights_of(config, facts):
        found, shape = weights.facts.architecture, weights.model.shape
        if found is None or shape is None:
            continue
        said = vars(Architecture.of_shape(shape))
        for name, value in vars(found).items():
            if value is not None and said[name] != value:
                yield Finding(
                    f"{weights.key}.shape.{name}",
                    f"is {said[name]}, but {weights.facts.folder}/config.json says {value}; "
                    "correct it, or remove `shape`, which is for weights that are elsewhere",
                )


def weights_can_be_read(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """A folder of weights has a config.json."""
    for weights in weights_of(config, facts):
        if reason := weights.facts.unreadable:
            yield Finding(
                f"{weights.key}.source",
                f"{weights.facts.folder} holds no model: {reason}; name the folder of the weights",
            )


def context_fits_the_weights(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """No context is longer than the weights were made for, unless their config is overridden."""
    sizes, length = target_of(config, facts).architecture, config.model.max_model_len
    limit = sizes.max_context if sizes else None
    overridden = (
        "hf_overrides" in config.verifiers.engine_args
        or config.verifiers.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    )
    if limit and length and length > limit and not overridden:
        yield Finding(
            "model.max_model_len",
            f"{length} tokens are more than the weights were made for; use at most {limit}",
        )


def quantization_is_that_of_the_weights(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Weights are quantized as the config says.

    FP8 may be asked of weights that are not quantized: vLLM does it while loading.
    """
    for weights in weights_of(config, facts):
        asked, found = weights.model.quantization, weights.facts.quantization
        if asked is None or found is None or asked == found or (not found and asked == "fp8"):
            continue
        yield Finding(
            f"{weights.key}.quantization",
            f"is {asked}, but the weights in {weights.facts.folder} are "
            f"{found or 'not quantized'}; remove the key, or take other weights",
        )


def adapters_have_names_of_their_own(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A name that a request asks for means one thing."""
    owners = {config.model.name: "the model"}
    for index, adapter in enumerate(config.model.adapters):
        key = f"model.adapters[{index}]"
        owner = owners.setdefault(adapter.name, key)
        if owner != key:
            yield Finding(f"{key}.name", f"{adapter.name} is the name of {owner}; use another")


def step_holds_every_sequence(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Each running sequence gets a token in every step (vllm/config/scheduler.py)."""
    tokens, sequences = config.verifiers.max_batched_tokens, config.verifiers.max_sequences
    if tokens and sequences and tokens < sequences:
        yield Finding(
            "verifiers.max_batched_tokens",
            f"{tokens} tokens in a step are fewer than its sequences; use at least {sequences}, "
            "which is verifiers.max_sequences",
        )


RULES = (
    ranks_share_heads,
    stages_have_layers,
    sizes_are_known,
    shape_is_that_of_the_weights,
    weights_can_be_read,
    context_fits_the_weights,
    quantization_is_that_of_the_weights,
    adapters_have_names_of_their_own,
    step_holds_every_sequence,
)
