"""What vLLM's worker processes get from us: a mixin for their Worker class.

vLLM imports this module in every rank (`worker_extension_cls`), which is the only
place where the code that runs the model can be reached. Its methods are called by
`collective_rpc`: they connect the proposer of the rank that proposes, and bring it the
list of draft workers.

On a CPU it mends three faults of vLLM 0.32.0. Two are in how sampling parameters reach the
rows of draft tokens: the parameters of a request were written into a copy that is
thrown away, so that drafted rows were sampled with whatever lay in memory, and a step
without any draft token failed where a request had `top_k`, and took the engine along.
The third is in LoRA: rows without an adapter have the index -1, which Python takes for the
last adapter, so that they got that one's answer whenever another row of the step had any.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from configs.schema import ClusterConfig
from replicas.verifier.drafting_host import DraftingHost

_apply_top_k_top_p = rejection_sampler.apply_top_k_top_p


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """One value a request becomes one value a draft token.

    Args:
        x: [requests] values.
        cu_num_tokens: [requests] draft tokens up to and including each request.
        num_tokens: All draft tokens.
        replace_from: Values equal to this
        replace_to: become this.

    Returns:
        [num_tokens], of x's type: x = [a, b], cu_num_tokens = [2, 5] gives [a, a, b, b, b].
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def apply_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """`logits` [draft tokens, vocabulary] cut to the top k and p of each row; none need none."""
    if logits.shape[0] == 0:
        return logits
    cut: torch.Tensor = _apply_top_k_top_p(logits, k, p)
    return cut


def only_with_adapter(operation: Callable[..., None]) -> Callable[..., None]:
    """A LoRA operation of vLLM that leaves rows without an adapter as they are.

    Args:
        operation: Takes inputs [rows, ...], weights [adapters, ...], outputs and the adapter of
            each row, -1 for none. What it makes of zeros is zeros.
    """

    @wraps(operation)
    def masked(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        outputs: torch.Tensor,
        adapters: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> None:
        has_one = (adapters >= 0).unsqueeze(-1)
        operation(torch.where(has_one, inputs, 0), weights, outputs, adapters, *rest, **options)

    return masked


def _mend_vllm_on_a_cpu() -> None:
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    rejection_sampler.apply_top_k_top_p = apply_top_k_top_p
    for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"):
        mended = only_with_adapter(getattr(lora_ops, name))
        # One module has them, the other has imported them.
        setattr(lora_ops, name, mended)
        setattr(punica_cpu, name, mended)


if current_platform.is_cpu():
    _mend_vllm_on_a_cpu()


class WorkerExtension:
    """Mixed into vLLM's Worker; a method's name must not be one of Worker's."""

    model_runner: Any
    _drafting: DraftingHost | None = None

    def drafting_connect(self, config: Mapping[str, Any], tokenizer_fingerprint: str) -> bool:
        """Connects the proposer, on the rank whose drafts count; True there.

        Args:
            config: The cluster's config, as JSON types.
            tokenizer_fingerprint: The target's; draft workers must have the same.
        """
        if get_tp_group().rank_in_group or not get_pp_group().is_last_rank:
            return False
        self._drafting = DraftingHost(
            self.model_runner, ClusterConfig.model_validate(config), tokenizer_fingerprint
        )
        return True

    def drafting_tick(
        self, workers: list[dict[str, Any]], pressure: int = 0
    ) -> dict[str, Any] | None:
        """Brings the live draft workers, and takes home the counts, about once a second.

        Args:
            workers: `WorkerAddress` as JSON types.
            pressure: 0-5, from the front door: how much of drafting is to be given up.

        Returns:
            `DraftingState` as JSON types, or None on the other ranks.
        """
        return None if self._drafting is None else self._drafting.tick(workers, pressure)
