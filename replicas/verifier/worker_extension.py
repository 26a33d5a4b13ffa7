"""What vLLM's worker processes get from us: a mixin for their Worker class.

vLLM imports this module in every rank (`worker_extension_cls`), which is the only
place where the code that runs the model can be reached.

On a CPU it mends two faults of vLLM 0.32.0, both in how sampling parameters reach the
rows of draft tokens: the parameters of a request were written into a copy that is
thrown away, so that drafted rows were sampled with whatever lay in memory, and a step
without any draft token failed where a request had `top_k`, and took the engine along.
"""

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

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


if current_platform.is_cpu():
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    rejection_sampler.apply_top_k_top_p = apply_top_k_top_p


class WorkerExtension:
    """Mixed into vLLM's Worker; has no methods of its own yet."""
