"""A draft model in vLLM, in this process: what `generation.DraftEngine` promises.

Prefix caching makes a restart behind a corrected token cheap; priorities keep spare requests
from those that somebody waits for. vLLM is imported when the engine is made: workers without a
model do without it.
"""

from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any, Final

from configs.model_folder import read_model
from configs.schema import ClusterConfig
from configs.sections.drafting import WorkerModelConfig
from kvstore.llvmlite_mend import mend
from replicas.draft.generation import UNKNOWN, Choice, Grown, Plan

GIB: Final = 1 << 30
CPU_KV_CACHE_GIB: Final = 1.0
GPU_PART: Final = 0.9
"""Of the worker's part of a GPU's memory, what vLLM may fill."""
SEEN: Final = 2
"""Likeliest tokens that are looked at, for branches."""


def draft_engine_args(config: ClusterConfig, source: str) -> dict[str, Any]:
    """vLLM's engine arguments for the draft model of a worker.

    Args:
        config: A checked config, with `drafting.split.workers.draft`.
        source: Folder or hub id of the draft model.
    """
    split = config.drafting.split
    assert split is not None and split.workers.draft is not None, "only called for kind model"
    workers, draft = split.workers, split.workers.draft
    on_gpu = workers.gpus > 0
    args: dict[str, Any] = {
        "model": source,
        "dtype": draft.dtype,
        "tensor_parallel_size": draft.tensor_parallel,
        "enforce_eager": draft.eager,
        "block_size": 16 if on_gpu else 32,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "max_num_seqs": draft.sessions,
        # Only token ids come and go.
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    optional = {
        "quantization": draft.quantization,
        "kv_cache_dtype": draft.kv_cache_dtype,
        "max_model_len": _longest_text(config, draft, source),
    }
    args |= {key: value for key, value in optional.items() if value is not None}
    if not on_gpu and draft.tensor_parallel == 1:
        # vLLM gives a CPU's rank a process of its own, whose engine spins while it waits.
        args["distributed_executor_backend"] = "uni"
    return args | _memory_args(draft, workers.gpus)


def _longest_text(config: ClusterConfig, draft: WorkerModelConfig, source: str) -> int | None:
    """Tokens: no more than the target's, and than the draft model was made for."""
    sizes = read_model(Path(source)).architecture
    own = sizes.max_context if sizes is not None else draft.shape and draft.shape.max_context
    limits = (draft.max_model_len, config.model.max_model_len, own)
    return min((limit for limit in limits if limit), default=None)


def _memory_args(draft: WorkerModelConfig, gpus: float) -> dict[str, Any]:
    if draft.memory_gib is None and gpus > 0:
        return {"gpu_memory_utilization": GPU_PART * min(1.0, gpus)}
    return {"kv_cache_memory_bytes": int((draft.memory_gib or CPU_KV_CACHE_GIB) * GIB)}


def draft_model_environment(on_gpu: bool) -> dict[str, str]:
    """Environment variables of a process that runs a draft model."""
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # The engine steps in a thread of the worker.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONHASHSEED": "0",
    }
    return env if on_gpu else env | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class VllmDraftEngine:
    """See `generation.DraftEngine`.

    Args:
        engine_args: vLLM's, as `draft_engine_args` makes them.
        sees_others: Whether second choices are looked at, which costs a little in each step.
    """

    def __init__(self, engine_args: dict[str, Any], sees_others: bool) -> None:
        from vllm import EngineArgs, SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        mend()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_args))
        self._params, self._prompt = SamplingParams, tokens_input
        self._delta = RequestOutputKind.DELTA
        self._logprobs = SEEN if sees_others else None
        self.max_model_len: int = self._engine.model_config.max_model_len
        self.vocab_size: int = self._engine.model_config.get_vocab_size()
        self._warm()

    def _warm(self) -> None:
        """A first step takes a second longer than others: nobody should wait for that one."""
        params = self._params(max_tokens=2, detokenize=False, logprobs=self._logprobs)
        self._engine.add_request("warm", self._prompt([0, 1]), params)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def change(self, plan: Plan) -> None:
        """As `DraftEngine.change`."""
        if plan.stop:
            self._engine.abort_request([str(request) for request in plan.stop])
        for start in plan.start:
            prompt = self._prompt(start.prompt.tolist(), cache_salt=start.salt)
            params = self._params(
                temperature=0.0,
                max_tokens=self.max_model_len - len(start.prompt),
                ignore_eos=True,
                detokenize=False,
                logprobs=self._logprobs,
                output_kind=self._delta,
            )
            self._engine.add_request(
                str(start.request), prompt, params, priority=int(start.is_spare)
            )

    def step(self) -> Sequence[Grown]:
        """As `DraftEngine.step`."""
        grown: list[Grown] = []
        for output in self._engine.step():
            request = int(output.request_id)
            [completion] = output.outputs
            logprobs = completion.logprobs or [None] * len(completion.token_ids)
            for token, seen in zip(completion.token_ids, logprobs, strict=True):
                grown.append(Grown(request, token, _choice(token, seen)))
        return grown

    def close(self) -> None:
        """As `DraftEngine.close`."""
        self._engine.engine_core.shutdown()


def _choice(token: int, seen: Any) -> Choice:
    """By the log-probabilities of the likeliest tokens."""
    if not seen:
        return UNKNOWN
    others = [(entry.logprob, other) for other, entry in seen.items() if other != token]
    own = seen[token].logprob
    logprob, other = max(others)
    return Choice(min(1.0, exp(own)), other, min(1.0, exp(logprob - own)))
