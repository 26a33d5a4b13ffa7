"""Each rule about the models refuses what cannot work and lets pass what can."""

from pathlib import Path

import pytest

from configs.checks import model
from configs.checks.model import (
    adapters_have_names_of_their_own,
    context_fits_the_weights,
    quantization_is_that_of_the_weights,
    ranks_share_heads,
    shape_is_that_of_the_weights,
    sizes_are_known,
    stages_have_layers,
    step_holds_every_sequence,
    weights_can_be_read,
)
from configs.model_folder import Architecture, ModelFacts

# SmolLM2-135M, and a draft of it with another vocabulary.
SMOL = Architecture(9, 3, 64, 30, 576, 49152, 8192)
HERE = {"target": ModelFacts(Path("/w"), architecture=SMOL, quantization="")}
AWQ_HERE = {"target": ModelFacts(Path("/w"), architecture=SMOL, quantization="awq")}
SHAPE = {
    "attention_heads": 9,
    "kv_heads": 3,
    "layers": 30,
    "hidden_size": 576,
    "vocab_size": 49152,
    "max_context": 8192,
    "parameters_billions": 0.135,
}
DRAFT = {"source": "org/draft", "shape": SHAPE}
TP = "verifiers.tensor_parallel"
COLOCATED = "drafting.colocated"
TWO_ADAPTERS = [{"name": "a", "source": "org/a"}, {"name": "a", "source": "org/b"}]

CASES = [
    (ranks_share_heads, {TP: 2}, TP, "9 attention heads", {TP: 3, "verifiers.cpus": 1}, HERE),
    (
        ranks_share_heads,
        {"model.shape": SHAPE | {"attention_heads": 12, "kv_heads": 6}, TP: 4},
        TP,
        "6 KV heads evenly; use one of 1, 2, 3, 6, 12",
        {"model.shape": SHAPE | {"attention_heads": 12, "kv_heads": 6}, TP: 3},
        {},
    ),
    (
        ranks_share_heads,
        {
            f"{COLOCATED}.method": "draft_model",
            f"{COLOCATED}.draft": DRAFT | {"tensor_parallel": 2},
        },
        f"{COLOCATED}.draft.tensor_parallel",
        "use one of 1, 3, 9",
        {f"{COLOCATED}.method": "draft_model", f"{COLOCATED}.draft": DRAFT},
        HERE,
    ),
    (
        stages_have_layers,
        {"verifiers.pipeline_parallel": 31},
        "verifiers.pipeline_parallel",
        "use at most 30",
        {"verifiers.pipeline_parallel": 2},
        HERE,
    ),
    (sizes_are_known, {TP: 3}, "model.shape", "add the section", {TP: 3, "model.shape": SHAPE}, {}),
    (
        sizes_are_known,
        {f"{COLOCATED}.method": "draft_model", f"{COLOCATED}.draft": DRAFT},
        "model.shape",
        "the draft model has its vocabulary",
        {f"{COLOCATED}.method": "eagle3", f"{COLOCATED}.draft": {"source": "org/head"}},
        {},
    ),
    (
        sizes_are_known,
        {f"{COLOCATED}.method": "draft_model", f"{COLOCATED}.draft": {"source": "org/draft"}},
        f"{COLOCATED}.draft.shape",
        "it has the target's vocabulary",
        {f"{COLOCATED}.method": "draft_model", f"{COLOCATED}.draft": DRAFT},
        HERE,
    ),
    (
        shape_is_that_of_the_weights,
        {"model.shape": SHAPE | {"layers": 32}},
        "model.shape.layers",
        "is 32, but /w/config.json says 30",
        {"model.shape": SHAPE},
        HERE,
    ),
    (
        context_fits_the_weights,
        {"model.max_model_len": 8193},
        "model.max_model_len",
        "use at most 8192",
        {"model.max_model_len": 8192},
        HERE,
    ),
    (
        context_fits_the_weights,
        {"model.max_model_len": 8193},
        "model.max_model_len",
        "use at most 8192",
        {"model.max_model_len": 8193, "verifiers.env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        HERE,
    ),
    (
        quantization_is_that_of_the_weights,
        {"model.quantization": "gptq"},
        "model.quantization",
        "is gptq, but the weights in /w are awq",
        {"model.quantization": "awq"},
        AWQ_HERE,
    ),
    (
        quantization_is_that_of_the_weights,
        {"model.quantization": "awq"},
        "model.quantization",
        "are not quantized; remove the key",
        {"hardware": {"kind": "gpu", "gpu_type": "L4"}, "model.quantization": "fp8"},
        HERE,
    ),
    (
        adapters_have_names_of_their_own,
        {"model.adapters": TWO_ADAPTERS},
        "model.adapters[1].name",
        "a is the name of model.adapters[0]",
        {"model.adapters": TWO_ADAPTERS[:1]},
        {},
    ),
    (
        adapters_have_names_of_their_own,
        {"model.adapters": [{"name": "m", "source": "org/a"}]},
        "model.adapters[0].name",
        "m is the name of the model",
        {"model.adapters": TWO_ADAPTERS[:1]},
        {},
    ),
    (
        step_holds_every_sequence,
        {"verifiers.max_batched_tokens": 8, "verifiers.max_sequences": 16},
        "verifiers.max_batched_tokens",
        "use at least 16",
        {"verifiers.max_batched_tokens": 16, "verifiers.max_sequences": 16},
        {},
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_rule_names_the_key_and_the_remedy(judge, rule, wrong, key, says, right, known) -> None:
    """A rule refuses the wrong config by its key, in words that say what to do."""
    found = dict(judge(wrong, known, rule))
    assert says in found.get(key, "nothing found")


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_config_that_works_passes_all_rules(judge, rule, wrong, key, says, right, known) -> None:
    """With the remedy taken, no rule of any file has anything to say."""
    assert judge(right, known) == []


def test_every_rule_has_a_case() -> None:
    """No rule of this file goes untested."""
    assert {case[0] for case in CASES} | {weights_can_be_read} == set(model.RULES)


def test_a_folder_without_a_model_is_refused(judge) -> None:
    """A source that is there, but is not what it should be."""
    known = ModelFacts(Path("/w"), unreadable="there is no config.json in it")
    ((key, reason),) = judge({}, {"target": known})
    assert key == "model.source"
    assert reason.startswith("/w holds no model: there is no config.json in it")
