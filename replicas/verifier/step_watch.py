"""Watches vLLM's model runner at work: what each step verified, and where its time went.

The step of a verifier has four parts, measured here for metrics and deadlines:

    prepare   inputs and attention metadata, before the forward pass
    verify    forward pass, logits, sampling and acceptance
    draft     asking for the next step's drafts and waiting for them
    commit    everything until the next step: output, stop checks, scheduling

A step in which all sequences decode is also a sample of what such a step costs, from which draft
lengths are decided (`draft_lengths.py`). With a prompt in it, or before a pause, it is none.

It wraps three methods of one runner object. On a GPU the forward pass is only launched in
`verify`'s first half; sampling waits for it, and belongs to `verify` too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from replicas.verifier.step_cost import StepLoad

PARTS = ("prepare", "verify", "draft", "commit")
SMOOTHING = 0.1
"""Weight of a new step in the running mean of step time."""
OUTLIER = 4.0
"""A step that takes this many times the mean (a prefill mixed in) counts as so many."""
IDLE_S = 0.5
"""A longer pause between two steps is an idle engine, not `commit`."""


@dataclass
class StepWatch:
    """Times in seconds.

    Attributes:
        steps: Steps that ran a forward pass.
        total_s: By part, since the start.
        mean_s: Running mean of a step's time without `draft`. 0 before the first.
        verified: Draft tokens that the current step verifies, by engine request id.
        on_prompts: Called before a step with vLLM's data of the requests that are new in it.
    """

    steps: int = 0
    total_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    mean_s: float = 0.0
    verified: dict[str, list[int]] = field(default_factory=dict)
    on_prompts: Callable[[Sequence[Any]], None] | None = None
    _marks: dict[str, float] = field(default_factory=dict)
    _drafted_s: float = 0.0
    _ended_s: float = 0.0
    _load: StepLoad | None = None
    _sample: tuple[StepLoad, float] | None = None

    def attach(self, runner: Any) -> None:
        """Starts to watch a model runner of vLLM."""
        runner.execute_model = _around(runner.execute_model, self._begin, None)
        runner._model_forward = _around(runner._model_forward, self._forward, None)
        runner.sample_tokens = _around(runner.sample_tokens, None, self._end)

    def drafted(self, seconds: float) -> None:
        """Drafting in this step took so long."""
        self._drafted_s += seconds

    def take_sample(self) -> tuple[StepLoad, float] | None:
        """What the last step did and how long it took without drafting, once."""
        sample, self._sample = self._sample, None
        return sample

    def _begin(self, scheduler_output: Any, *_: Any, **__: Any) -> None:
        now_s = time.perf_counter()
        self.verified = scheduler_output.scheduled_spec_decode_tokens
        pause_s = now_s - self._ended_s
        if self._ended_s and pause_s < IDLE_S:
            self.total_s["commit"] += pause_s
            step_s = self._marks.get("step", 0.0) + pause_s
            self._learn(step_s)
            self._sample = None if self._load is None else (self._load, step_s)
        self._ended_s = 0.0
        self._load = decoding_load(scheduler_output)
        self._marks = {"begin": now_s}
        if self.on_prompts is not None and scheduler_output.scheduled_new_reqs:
            self.on_prompts(scheduler_output.scheduled_new_reqs)

    def _forward(self, *_: Any, **__: Any) -> None:
        self._marks["forward"] = time.perf_counter()

    def _end(self) -> None:
        forward_s = self._marks.get("forward")
        if forward_s is None:
            return
        self._ended_s = time.perf_counter()
        drafted_s, self._drafted_s = self._drafted_s, 0.0
        prepare_s = forward_s - self._marks["begin"]
        verify_s = max(0.0, self._ended_s - forward_s - drafted_s)
        self.steps += 1
        self.total_s["prepare"] += prepare_s
        self.total_s["verify"] += verify_s
        self.total_s["draft"] += drafted_s
        self._marks["step"] = prepare_s + verify_s

    def _learn(self, step_s: float) -> None:
        if not self.mean_s:
            self.mean_s = step_s
        self.mean_s += SMOOTHING * (min(step_s, OUTLIER * self.mean_s) - self.mean_s)


def decoding_load(scheduler_output: Any) -> StepLoad | None:
    """What a step of vLLM's scheduler has to do; None where a prompt is in it."""
    if scheduler_output.scheduled_new_reqs or not scheduler_output.total_num_scheduled_tokens:
        return None
    cached = scheduler_output.scheduled_cached_reqs
    scheduled = scheduler_output.num_scheduled_tokens
    drafts = scheduler_output.scheduled_spec_decode_tokens
    context = draft_context = 0
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        draft = len(drafts.get(request_id, ()))
        if scheduled[request_id] != 1 + draft:
            return None
        context += computed
        draft_context += computed * draft
    verified = scheduler_output.total_num_scheduled_tokens
    return StepLoad(verified, context, draft_context, len(cached.req_ids))


def _around(
    method: Callable[..., Any],
    before: Callable[..., None] | None,
    after: Callable[[], None] | None,
) -> Callable[..., Any]:
    @wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = method(*args, **kwargs)
        if after is not None:
            after()
        return result

    return watched
