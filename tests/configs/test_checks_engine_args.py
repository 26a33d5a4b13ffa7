"""Each rule about vLLM's own arguments refuses what is said elsewhere, or by nobody."""

import pytest

from configs.checks import engine_args
from configs.checks.engine_args import (
    DECIDED,
    OUR_KEYS,
    arguments_are_not_ours,
    arguments_exist,
    logits_processors_do_not_meet_drafts,
    variables_are_not_ours,
)
from configs.describe import describe_schema
from configs.vllm_arguments import vllm_arguments

ARGS = "verifiers.engine_args"
VLLM = {"vllm_arguments": frozenset({"stream_interval", "logits_processors", "max_num_seqs"})}

CASES = [
    (
        arguments_are_not_ours,
        {ARGS: {"max_num_seqs": 8}},
        f"{ARGS}.max_num_seqs",
        "is verifiers.max_sequences in this file; set it there",
        {"verifiers.max_sequences": 8},
        VLLM,
    ),
    (
        arguments_are_not_ours,
        {ARGS: {"max-num-seqs": 8}},
        f"{ARGS}.max-num-seqs",
        "is verifiers.max_sequences",
        {ARGS: {"stream_interval": 8}},
        VLLM,
    ),
    (
        arguments_are_not_ours,
        {ARGS: {"scheduling_policy": "fcfs"}},
        f"{ARGS}.scheduling_policy",
        "the front door sets priorities; remove it",
        {ARGS: {"stream_interval": 8}},
        VLLM,
    ),
    (
        arguments_exist,
        {ARGS: {"stream-interval": 8}},
        f"{ARGS}.stream-interval",
        "did you mean stream_interval?",
        {ARGS: {"stream_interval": 8}},
        VLLM,
    ),
    (
        arguments_exist,
        {ARGS: {"warp_factor": 9}},
        f"{ARGS}.warp_factor",
        "is no engine argument of the installed vLLM; remove it",
        {ARGS: {}},
        VLLM,
    ),
    (
        logits_processors_do_not_meet_drafts,
        {ARGS: {"logits_processors": ["m:C"]}, "drafting.colocated.method": "ngram"},
        f"{ARGS}.logits_processors",
        "does not go with drafting",
        {ARGS: {"logits_processors": ["m:C"]}},
        VLLM,
    ),
    (
        variables_are_not_ours,
        {"verifiers.env": {"VLLM_CPU_KVCACHE_SPACE": "4"}},
        "verifiers.env.VLLM_CPU_KVCACHE_SPACE",
        "is verifiers.kv_cache.memory_gib in this file",
        {"verifiers.env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
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
    assert {case[0] for case in CASES} == set(engine_args.RULES)


def test_arguments_are_not_judged_without_vllm(judge) -> None:
    """Where no vLLM is installed, nobody can say which arguments it has."""
    assert judge({ARGS: {"warp_factor": 9}}, {"vllm_arguments": None}) == []


def test_the_tables_name_real_arguments_and_real_keys() -> None:
    """Each argument exists in the installed vLLM, and each of our keys in the schema."""
    arguments = vllm_arguments()
    if arguments is None:
        pytest.skip("vLLM is not installed")
    assert set(OUR_KEYS) | set(DECIDED) <= arguments
    assert set(OUR_KEYS.values()) <= {s.key.removesuffix("[]") for s in describe_schema()}
