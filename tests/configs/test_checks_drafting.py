"""Each rule about drafting refuses what cannot work and lets pass what can."""

import pytest

from configs.checks import drafting
from configs.checks.drafting import (
    classes_wish_what_there_is,
    defaults_can_be_verified,
    draft_computes_like_the_target,
    draft_length_fits,
    draft_ranks_fit,
    lookup_has_a_range,
    method_has_its_weights,
    method_runs_here,
    ngrams_fit_into_redis,
    one_family,
    schedule_is_in_order,
    token_ids_mean_the_same,
    vocabularies_are_one,
    worker_has_what_it_needs,
)
from configs.model_folder import ModelFacts

LLAMA = {
    "attention_heads": 32,
    "kv_heads": 8,
    "layers": 16,
    "hidden_size": 2048,
    "vocab_size": 128256,
    "max_context": 131072,
    "parameters_billions": 1.24,
}
METHOD, DRAFT = "drafting.colocated.method", "drafting.colocated.draft"
SCHEDULE = "drafting.colocated.schedule"
WORKERS = "drafting.split.workers"
NGRAM = {METHOD: "ngram"}
GPU = {"hardware": {"kind": "gpu", "gpu_type": "H100"}}
MODEL_DRAFT = {METHOD: "draft_model", "model.shape": LLAMA, "model.max_model_len": 4096}
GOOD_DRAFT = {"source": "org/draft", "shape": LLAMA}
HEAD = {"source": "org/head"}
MODEL_WORKER = {
    **GPU,
    "model.shape": LLAMA,
    f"{WORKERS}.kinds": ["prompt_lookup", "model"],
    f"{WORKERS}.draft": GOOD_DRAFT,
    f"{WORKERS}.gpus": 1,
}


def steps(*steps: tuple[int, int]) -> dict:
    """A schedule of (largest batch, draft length)."""
    return {**NGRAM, SCHEDULE: [{"max_batch": b, "length": n} for b, n in steps]}


CASES = [
    (one_family, {**NGRAM, "drafting.split": {}}, "drafting", "remove one", NGRAM, {}),
    (method_has_its_weights, {METHOD: "eagle3"}, DRAFT, "add a draft", {METHOD: "mtp"}, {}),
    (
        method_has_its_weights,
        {**NGRAM, DRAFT: HEAD},
        DRAFT,
        "ngram has no weights; remove it",
        {METHOD: "eagle3", DRAFT: HEAD},
        {},
    ),
    (method_runs_here, {METHOD: "suffix"}, METHOD, "use ngram", {**GPU, METHOD: "suffix"}, {}),
    (method_runs_here, {METHOD: "ngram_gpu"}, METHOD, "needs a GPU", NGRAM, {}),
    (
        method_runs_here,
        {METHOD: "suffix"},
        METHOD,
        "suffix needs a GPU",
        {METHOD: "dflash", DRAFT: HEAD},
        {},
    ),
    (
        lookup_has_a_range,
        {**NGRAM, "drafting.colocated.prompt_lookup_min": 5},
        "drafting.colocated.prompt_lookup_min",
        "5 is more than prompt_lookup_max, 4",
        {**NGRAM, "drafting.colocated.prompt_lookup_min": 4},
        {},
    ),
    (
        schedule_is_in_order,
        steps((8, 4), (8, 2)),
        f"{SCHEDULE}[1].max_batch",
        "put the steps in order",
        steps((8, 4), (16, 2)),
        {},
    ),
    (
        schedule_is_in_order,
        steps((8, 5)),
        f"{SCHEDULE}[0].length",
        "5 is more than drafting.max_length, 4",
        {**steps((8, 5)), "drafting.max_length": 5},
        {},
    ),
    (
        schedule_is_in_order,
        steps((8, 3), (16, 0)),
        "drafting.max_length",
        "set it to 3",
        steps((8, 4), (16, 0)),
        {},
    ),
    (schedule_is_in_order, steps((8, 0)), SCHEDULE, "never drafts", steps((8, 4)), {}),
    (
        classes_wish_what_there_is,
        {"drafting.split": {}, "drafting.classes.batch": 5},
        "drafting.classes.batch",
        "5 is more than drafting.max_length, 4",
        {"drafting.split": {}, "drafting.classes.batch": 4, "drafting.classes.interactive": "off"},
        {},
    ),
    (
        defaults_can_be_verified,
        {**NGRAM},
        "model.source",
        "sets min_p to 0.05",
        {**NGRAM, "verifiers.engine_args": {"generation_config": "vllm"}},
        {"target": ModelFacts(default_min_p=0.05)},
    ),
    (
        ngrams_fit_into_redis,
        {f"{WORKERS}.kinds": ["ngram_index"], f"{WORKERS}.ngram.stream_tokens": 64 << 20},
        f"{WORKERS}.ngram.stream_tokens",
        "raise that to 522",
        {f"{WORKERS}.kinds": ["ngram_index"], f"{WORKERS}.ngram.stream_tokens": 16 << 20},
        {},
    ),
    (
        vocabularies_are_one,
        {**MODEL_DRAFT, DRAFT: {"source": "org/d", "shape": LLAMA | {"vocab_size": 49152}}},
        f"{DRAFT}.source",
        "49152 tokens and the target's 128256",
        {**MODEL_DRAFT, DRAFT: GOOD_DRAFT},
        {},
    ),
    (
        vocabularies_are_one,
        {
            **MODEL_WORKER,
            f"{WORKERS}.draft": {"source": "org/d", "shape": LLAMA | {"vocab_size": 49152}},
        },
        f"{WORKERS}.draft.source",
        "take a draft model with the target's tokenizer",
        MODEL_WORKER,
        {},
    ),
    (
        token_ids_mean_the_same,
        MODEL_WORKER | {"model.source": "org/target"},
        f"{WORKERS}.draft.source",
        "token ids of org/draft mean something else than those of org/target",
        NGRAM,
        {"vocabularies": ("one", "another")},
    ),
    (
        draft_ranks_fit,
        {
            **GPU,
            "verifiers.tensor_parallel": 4,
            METHOD: "eagle3",
            DRAFT: HEAD | {"tensor_parallel": 2},
        },
        f"{DRAFT}.tensor_parallel",
        "use 1 or 4",
        {
            **GPU,
            "model.shape": LLAMA,
            "verifiers.tensor_parallel": 4,
            METHOD: "eagle3",
            DRAFT: HEAD | {"tensor_parallel": 4},
        },
        {},
    ),
    (
        draft_computes_like_the_target,
        {METHOD: "eagle3", DRAFT: HEAD | {"dtype": "float16"}},
        f"{DRAFT}.dtype",
        "leave it out",
        {METHOD: "eagle3", DRAFT: HEAD | {"dtype": "float16"}, "model.dtype": "float16"},
        {},
    ),
    (
        draft_length_fits,
        {**MODEL_DRAFT, DRAFT: GOOD_DRAFT | {"max_model_len": 8192}},
        f"{DRAFT}.max_model_len",
        "more than the target's limit, 4096",
        {**MODEL_DRAFT, DRAFT: GOOD_DRAFT | {"max_model_len": 2048}},
        {},
    ),
    (
        worker_has_what_it_needs,
        {**MODEL_WORKER, f"{WORKERS}.draft": None},
        f"{WORKERS}.draft",
        "is missing: kind model needs weights",
        MODEL_WORKER,
        {},
    ),
    (
        worker_has_what_it_needs,
        {f"{WORKERS}.draft": HEAD},
        f"{WORKERS}.draft",
        "is not used",
        {f"{WORKERS}.kinds": ["ngram_index"]},
        {},
    ),
    (
        worker_has_what_it_needs,
        {f"{WORKERS}.kinds": ["ngram_index", "ngram_index"]},
        f"{WORKERS}.kinds[1]",
        "is listed twice",
        {f"{WORKERS}.kinds": ["ngram_index", "prompt_lookup"]},
        {},
    ),
    (
        worker_has_what_it_needs,
        {f"{WORKERS}.gpus": 1},
        f"{WORKERS}.gpus",
        "none on hardware.kind cpu",
        {f"{WORKERS}.gpus": 0},
        {},
    ),
    (
        worker_has_what_it_needs,
        {**MODEL_WORKER, f"{WORKERS}.gpus": 1.5},
        f"{WORKERS}.gpus",
        "neither a part of one GPU nor whole",
        {**MODEL_WORKER, f"{WORKERS}.gpus": 0.5},
        {},
    ),
    (
        worker_has_what_it_needs,
        {**GPU, f"{WORKERS}.gpus": 1},
        f"{WORKERS}.gpus",
        "only kind model uses a GPU",
        {**MODEL_WORKER, f"{WORKERS}.gpus": 2},
        {},
    ),
    (
        worker_has_what_it_needs,
        {**MODEL_WORKER, f"{WORKERS}.draft": GOOD_DRAFT | {"tensor_parallel": 2}},
        f"{WORKERS}.gpus",
        "1 GPUs are too few",
        {
            **MODEL_WORKER,
            f"{WORKERS}.draft": GOOD_DRAFT | {"tensor_parallel": 2},
            f"{WORKERS}.gpus": 2,
        },
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
    assert {case[0] for case in CASES} == set(drafting.RULES)
