"""What is gathered from disk is what vLLM would read there, and nothing is raised."""

import json
import os
from pathlib import Path

import pytest

from configs import check, gather_facts
from configs.model_folder import Architecture, ModelFacts, locate, read_model

# SmolLM2-135M-Instruct.
CONFIG = {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
SMOL = Architecture(9, 3, 64, 30, 576, 49152, 8192)


@pytest.fixture
def weights(tmp_path):
    """Writes a model's folder, with keys of its config.json changed, and reads its facts."""

    def write(**changes: object) -> ModelFacts:
        config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_model(tmp_path)

    return write


def test_sizes_come_from_config_json(weights) -> None:
    """Heads, layers and context, with the widths that follow from them."""
    facts = weights()
    assert (facts.architecture, facts.dtype_bytes, facts.quantization) == (SMOL, 2, "")
    assert facts.plain_attention and not facts.fp8_weights


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"num_key_value_heads": None}, "kv_heads", 9),
        ({"head_dim": 128}, "head_dim", 128),
        ({"max_position_embeddings": None}, "max_context", None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "max_context", 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "max_context", 8192),
        ({"rope_parameters": {"full": {"rope_type": "llama3", "factor": 8}}}, "max_context", 8192),
    ],
)
def test_sizes_that_are_not_given_follow_from_others(weights, changes, field, value) -> None:
    """As vLLM derives them."""
    assert getattr(weights(**changes).architecture, field) == value


@pytest.mark.parametrize(
    ("text", "min_p"), [('{"min_p": 0.05}', 0.05), ("{}", 0.0), ("[]", 0.0), ("{", 0.0)]
)
def test_sampling_defaults_come_from_generation_config(weights, tmp_path, text, min_p) -> None:
    """What is not there, or is not JSON, sets nothing."""
    assert weights().default_min_p == 0.0
    (tmp_path / "generation_config.json").write_text(text)
    assert weights().default_min_p == min_p


def test_a_model_with_more_than_text_has_its_sizes_one_level_down(weights, tmp_path) -> None:
    """`text_config` is the language model."""
    (tmp_path / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    facts = read_model(tmp_path)
    assert (facts.architecture, facts.dtype_bytes) == (SMOL, 2)


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({"sliding_window": 4096}, False),
        ({"sliding_window": 4096, "use_sliding_window": False}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"layer_types": ["full_attention", "full_attention"]}, True),
        ({"kv_lora_rank": 512}, False),
    ],
)
def test_attention_that_keeps_less_is_seen(weights, changes, plain) -> None:
    """Where not every layer keeps every token, memory is not computed from layers and heads."""
    assert weights(**changes).plain_attention is plain


@pytest.mark.parametrize(
    ("quantization", "method", "bits", "fp8"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq", 4, False),
        ({"quant_method": "gptq", "bits": 8}, "gptq", 8, False),
        ({"quant_method": "fp8"}, "fp8", None, True),
        (
            {"quant_method": "compressed_tensors", "format": "float-quantized"},
            "compressed-tensors",
            None,
            True,
        ),
    ],
)
def test_quantization_is_seen(weights, quantization, method, bits, fp8) -> None:
    """By the name that a config uses for it, however the weights spell it."""
    facts = weights(quantization_config=quantization)
    assert (facts.quantization, facts.quantization_bits, facts.fp8_weights) == (method, bits, fp8)


def test_quantization_in_a_file_of_its_own_is_not_taken_for_none(weights, tmp_path) -> None:
    """Older AWQ and GPTQ weights: nothing is known, so nothing is refused."""
    (tmp_path / "quant_config.json").write_text("{}")
    assert weights().quantization is None


def test_weights_are_counted_once(weights, tmp_path) -> None:
    """A second copy in another format, or in one file, is not loaded."""
    for name, size in (("model-1.safetensors", 10), ("model-2.safetensors", 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    for name in ("consolidated.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"x" * 15)
    assert weights().weight_bytes == 15


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no config.json in it"),
        ("{", "its config.json is not JSON"),
        ("[]", "its config.json is not what vLLM would read"),
        ('{"text_config": 3}', "its config.json is not what vLLM would read"),
        ('{"quantization_config": "awq"}', "its config.json is not what vLLM would read"),
    ],
)
def test_a_broken_folder_is_a_fact_too(tmp_path, text, why) -> None:
    """It is told by the checks, not raised while gathering."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert why in read_model(tmp_path).unreadable


def test_a_source_is_a_folder_or_a_hub_id() -> None:
    """Only what is a folder is looked for on disk."""
    assert locate("builtin:smol", Path("/models")) == Path("/models/smol")
    assert locate("/weights", Path("/models")) == Path("/weights")
    assert locate("org/model", Path("/models")) is None


def test_a_model_that_is_not_here_leaves_its_facts_empty(make_config, tmp_path) -> None:
    """A hub id, and a builtin model that was not made yet, keep a config checkable."""
    for source in ("org/model", "builtin:not-made-yet"):
        config = make_config({"model.source": source, "folders.models": str(tmp_path)})
        assert gather_facts(config).target == ModelFacts()
        assert check(config, gather_facts(config), "test") == []


def test_facts_of_the_whole_config_reach_the_checks(make_config, tmp_path, monkeypatch) -> None:
    """Models, missing files, secrets and engine arguments, each under its key."""
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = make_config(
        {
            "model.source": str(tmp_path),
            "model.chat_template": "/no/template.jinja",
            "model.adapters": [{"name": "a", "source": "/no/adapter"}],
            "verifiers.tensor_parallel": 2,
            "verifiers.engine_args": {"max_model_length": 1},
            "drafting.split.workers.draft": {"source": str(tmp_path)},
            "drafting.split.workers.kinds": ["model"],
            "front_door.keys": {"env": "NO_SUCH_SECRET"},
        }
    )
    facts = gather_facts(config)
    assert facts.target.architecture == facts.worker_draft.architecture == SMOL
    keys = {problem.key for problem in check(config, facts, "test", secrets=True)}
    assert {
        "model.chat_template",
        "model.adapters[0].source",
        "verifiers.tensor_parallel",
        "front_door.keys",
    } <= keys


def test_secrets_are_reported_only_where_the_cluster_starts(make_config, monkeypatch) -> None:
    """A laptop that checks a cluster's file has no secrets, and should have none."""
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    config = make_config({"front_door.keys": {"env": "NO_SUCH_SECRET"}})
    facts = gather_facts(config)
    assert check(config, facts, "test") == []
    (problem,) = check(config, facts, "test", secrets=True)
    assert str(problem) == "test: front_door.keys: environment variable NO_SUCH_SECRET is not set"


def test_this_machine_is_measured(make_config) -> None:
    """Memory and cores are what this process may use."""
    machine = gather_facts(make_config({})).machine
    assert 0 < machine.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machine.cores <= (os.cpu_count() or 1)
