"""Sampled answers stay the target's own while tokens are drafted, on a CPU too.

Many rows with the same logits and one draft token each go through vLLM's rejection
sampler; what comes out first in each row must be distributed as the target says.
"""

import pytest
import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from kvstore.llvmlite_mend import mend
from replicas.verifier.worker_extension import apply_top_k_top_p, expand_batch_to_tokens

# vLLM's search for its own kernels touches deprecated names of torch.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ROWS, VOCABULARY, TEMPERATURE, TOP_K = 20_000, 12, 0.6, 7


@pytest.fixture(scope="module", autouse=True)
def cpu_kernels() -> None:
    """What a worker process of vLLM does at its start."""
    if not current_platform.is_cpu():
        pytest.skip("mends vLLM on a CPU only")
    current_platform.import_kernels()
    mend()  # a worker process loads numba only afterwards
    current_platform.register_triton_kernel_overrides()


def first_tokens(draft_token: int, rows: int = ROWS) -> torch.Tensor:
    """The first token of each row, sampled with one draft token a row."""
    logits = target_logits().repeat(2 * rows, 1)
    drafts = SpecDecodeMetadata.make_dummy([[draft_token]] * rows, torch.device("cpu"))
    drafts.target_logits_indices = torch.arange(0, 2 * rows, 2, dtype=torch.int32)
    drafts.bonus_logits_indices = torch.arange(1, 2 * rows, 2, dtype=torch.int32)
    none = torch.zeros(rows)
    sampling = SamplingMetadata(
        temperature=torch.full((rows,), TEMPERATURE),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=torch.full((rows,), TOP_K, dtype=torch.int32),
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=torch.ones(rows),
        output_token_ids=[[] for _ in range(rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
        spec_token_ids=[[draft_token]] * rows,
    )
    sampler = rejection_sampler.RejectionSampler(Sampler())
    return sampler(drafts, None, logits, sampling).sampled_token_ids[:, 0]


def target_logits() -> torch.Tensor:
    """[vocabulary] logits, none alike."""
    return torch.linspace(-1.5, 2.0, VOCABULARY)[torch.randperm(VOCABULARY, generator=seeded())]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def p_value(tokens: torch.Tensor) -> float:
    """Chi-square test of `tokens` against the target's distribution (Pearson 1900)."""
    scaled = target_logits() / TEMPERATURE
    kept = scaled >= scaled.topk(TOP_K).values[-1]
    expected = torch.where(kept, scaled, -torch.inf).softmax(0) * len(tokens)
    seen = torch.bincount(tokens.long(), minlength=VOCABULARY).double()
    if seen[~kept].any():
        return 0.0
    chi2 = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
    return float(torch.special.gammaincc(torch.tensor((TOP_K - 1) / 2.0), chi2.float() / 2))


@pytest.mark.parametrize("draft_token", range(VOCABULARY))
def test_drafted_rows_are_distributed_as_the_target_says(draft_token: int) -> None:
    """Temperature and top_k, whatever token is drafted: p above 0.001 over 20,000 rows."""
    torch.manual_seed(draft_token)
    assert p_value(first_tokens(draft_token)) > 0.001 / VOCABULARY


def test_the_test_rejects_a_sampler_with_another_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same rows with the temperature lost are told apart at once."""

    def lost(
        x: torch.Tensor, cu: torch.Tensor, num_tokens: int, *_: int, **__: int
    ) -> torch.Tensor:
        if x.is_floating_point():
            return torch.ones(num_tokens)
        return expand_batch_to_tokens(x, cu, num_tokens)

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", lost)
    torch.manual_seed(0)
    assert p_value(first_tokens(3)) < 1e-6


def test_values_are_repeated_for_each_draft_token() -> None:
    """Integers, floats and greedy rows, with requests that draft nothing between."""
    cu = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
    k = torch.tensor([4, 9, 5, 6], dtype=torch.int32)
    assert expand_batch_to_tokens(k, cu, 6).tolist() == [4, 4, 5, 5, 5, 6]
    temperature = torch.tensor([0.5, 0.7, 0.0, 1.5])
    expanded = expand_batch_to_tokens(temperature, cu, 6, replace_from=0, replace_to=1)
    assert expanded.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 1.5]
    assert expand_batch_to_tokens(k, torch.zeros(4, dtype=torch.int32), 0).tolist() == []


def test_a_step_without_drafts_needs_no_cutting() -> None:
    """No row, any k: nothing fails."""
    rows = torch.empty(0, VOCABULARY)
    assert apply_top_k_top_p(rows, torch.empty(0, dtype=torch.int32), None).shape == rows.shape


def test_rows_without_an_adapter_get_none() -> None:
    """Base and adapted rows of one step: each its own answer, as if it were alone."""
    torch.manual_seed(3)
    inputs = torch.randn(4, 16)
    shrink, expand = torch.randn(2, 1, 8, 16), torch.randn(2, 1, 16, 8)
    adapters = torch.tensor([-1, 1, 0, -1])

    def adapted(rows: torch.Tensor) -> torch.Tensor:
        low = torch.zeros(len(rows), 8)
        lora_ops.bgmv_shrink(inputs[rows], shrink, low, adapters[rows], 2.0)
        outputs = torch.zeros(len(rows), 16)
        lora_ops.bgmv_expand_slice(low, expand, outputs, adapters[rows], 0, 16)
        return outputs

    together = adapted(torch.arange(4))
    assert not together[[0, 3]].any()
    assert together[[1, 2]].any(dim=1).all()
    for row in range(4):
        torch.testing.assert_close(together[row], adapted(torch.tensor([row]))[0])
