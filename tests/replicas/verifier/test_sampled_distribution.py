"""Sampled answers of a whole engine are the target's own, though workers draft for it.

A real engine answers tens of thousands of times at a temperature. Of each token that was
sampled where one had been drafted, the exact probability is known from the weights, which
gives one statistic for all contexts and drafts (the randomized probability integral
transform; Rosenblatt 1952): with the vocabulary in an order that starts with the draft
token,

    U = P(a token before the sampled one) + V * P(the sampled one),   V uniform on [0, 1)

is uniform on [0, 1) whatever the context, and independent of all before it, if the engine
samples as the target says. An engine that favours drafts has too many near 0.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_process import Ask, EngineProcess, Run, Sampler
from tiny_models import make_tiny_llama
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPERATURE, NEW_TOKENS, LONGEST_DRAFT, BINS = 0.8, 6, 4, 50
VOCABULARY, PROMPTS, PROMPT_TOKENS = 64, 40, 40
SPLIT = {"shortest_match": 1}
TEXTS = [
    "one two three four one two three four one two three",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "The cat sat on the mat. The dog sat on the",
    "red: 1\ngreen: 2\nblue: 3\nred: 1\ngreen:",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads of torch wait for each other where others use the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, so sure of itself that its own text repeats itself."""
    return make_tiny_llama(
        tmp_path_factory.mktemp("tiny") / "model",
        heads=2,
        kv_heads=1,
        head_dim=32,
        vocab_size=VOCABULARY,
        logit_scale=4.0,
        tokenizer=False,
    )


@pytest.fixture(scope="module")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    log = tmp_path_factory.mktemp("engine") / "log"
    with EngineProcess(
        tiny,
        log,
        LONGEST_DRAFT,
        SPLIT,
        skip_tokenizer_init=True,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=128,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def prompts(engine: EngineProcess) -> list[list[int]]:
    """What the model says by itself, from each of some tokens on."""
    asks = [
        Ask(prompt=[i], max_tokens=PROMPT_TOKENS - 1, temperature=TEMPERATURE)
        for i in range(PROMPTS)
    ]
    answers = engine.run(asks, worker="none").answers
    return [ask.prompt + answer.tokens[0] for ask, answer in zip(asks, answers, strict=True)]


def sampled(
    engine: EngineProcess, prompts: list[list[int]], times: int, sampler: Sampler = "vllm"
) -> Run:
    """Each prompt continued so many times, those of one prompt one after the other."""
    return engine.run(
        [
            Ask(prompt=prompt, max_tokens=NEW_TOKENS, temperature=TEMPERATURE)
            for prompt in prompts
            for _ in range(times)
        ],
        sampler=sampler,
    )


@torch.inference_mode()
def exact_probabilities(model: Any, prompt: list[int], answers: torch.Tensor) -> torch.Tensor:
    """[answers, tokens, vocabulary]: of each answer's tokens, given all before them."""
    first = model(torch.tensor([prompt]), past_key_values=DynamicCache(), logits_to_keep=1)
    first.past_key_values.batch_repeat_interleave(len(answers))
    later = model(answers[:, :-1], past_key_values=first.past_key_values).logits
    logits = torch.cat([first.logits.expand(len(answers), -1, -1), later], dim=1)
    return (logits.double() / TEMPERATURE).softmax(-1)


def transformed(probabilities: np.ndarray, draft: int, token: int, v: float) -> float:
    """U of one sampled token, see the top of this file."""
    if token == draft:
        return v * float(probabilities[token])
    before = float(probabilities[:token].sum())
    if draft > token:
        before += float(probabilities[draft])
    return before + v * float(probabilities[token])


def transforms(folder: Path, prompts: list[list[int]], run: Run) -> list[float]:
    """U of every token that was sampled where a draft token was verified."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    times, random = len(run.answers) // len(prompts), np.random.default_rng(3)
    us: list[float] = []
    for i, prompt in enumerate(prompts):
        mine = range(i * times, (i + 1) * times)
        answers = torch.tensor([run.answers[j].tokens[0] for j in mine])
        probabilities = exact_probabilities(model, prompt, answers).numpy()
        for row, j in enumerate(mine):
            proposals, tokens = run.proposals[j], run.answers[j].tokens[0]
            ends = [p.length - len(prompt) for p in proposals[1:]] + [NEW_TOKENS]
            for proposal, end in zip(proposals, ends, strict=True):
                # A step ends with the first token that is not the drafted one.
                start = proposal.length - len(prompt)
                for at, draft in zip(range(start, end), proposal.draft, strict=False):
                    v = random.random()
                    us.append(transformed(probabilities[row, at], draft, tokens[at], v))
    return us


def p_value(us: list[float]) -> float:
    """Of a chi-square test that they are uniform (Pearson 1900)."""
    seen = np.histogram(us, bins=BINS, range=(0, 1))[0]
    chi2 = torch.tensor(((seen - len(us) / BINS) ** 2).sum() * BINS / len(us))
    return float(torch.special.gammaincc(torch.tensor((BINS - 1) / 2, dtype=chi2.dtype), chi2 / 2))


def test_sampled_answers_are_distributed_as_the_target_says(
    engine: EngineProcess, tiny: Path, prompts: list[list[int]]
) -> None:
    """24,000 answers with drafts of a worker: p above 0.001."""
    run = sampled(engine, prompts, times=600)
    proposed = sum(len(p.draft) for proposals in run.proposals for p in proposals)
    assert run.drafted == proposed == sum(run.drafted_by.values())
    assert run.accepted == sum(run.accepted_by.values())
    assert run.drafted_by["worker:prompt_lookup"] > 0.9 * run.drafted > 100_000
    assert run.accepted_from_workers > 0.1 * run.drafted
    us = transforms(tiny, prompts, run)
    assert len(us) > 50_000
    assert p_value(us) > 0.001


@pytest.mark.parametrize("sampler", ["accepts_all", "resamples_from_target"])
def test_the_test_rejects_an_engine_that_favours_drafts(
    engine: EngineProcess, tiny: Path, prompts: list[list[int]], sampler: Sampler
) -> None:
    """A sixth of the answers is enough to tell a wrong engine: p below one in a million."""
    run = sampled(engine, prompts, times=100, sampler=sampler)
    assert p_value(transforms(tiny, prompts, run)) < 1e-6


def test_a_real_model_is_sampled_as_it_says(smollm2: Path, tmp_path: Path) -> None:
    """Some hundred answers of SmolLM2, to prompts that repeat themselves: p above 0.001."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(smollm2)
    prompts = [tokenizer(text).input_ids for text in TEXTS]
    with EngineProcess(
        smollm2, tmp_path / "log", LONGEST_DRAFT, SPLIT, max_num_batched_tokens=1024
    ) as engine:
        run = sampled(engine, prompts, times=48)
    assert run.accepted_from_workers > 100
    us = transforms(smollm2, prompts, run)
    assert len(us) > 500
    assert p_value(us) > 0.001
