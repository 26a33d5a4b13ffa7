"""What a verifier says about itself, once a heartbeat."""

from typing import Annotated

import msgspec
from msgspec import Meta

from kvstore.kv_reports import SharingReport
from kvstore.report_types import PROTOCOL, ByPosition, Count, Ratio, Seconds, Text, Word


class SourceCounts(msgspec.Struct, frozen=True):
    """Draft tokens of one source by their place in the draft, the first at 0.

    Attributes:
        drafted: Verified, whether accepted or not.
        accepted: Accepted.
    """

    drafted: ByPosition
    accepted: ByPosition


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a verifier's counts the part of requests that can wait.

    Attributes:
        started: Requests that came to the engine.
        prefilled: That got a first token.
        prefilled_tokens: Prompt tokens that were computed for those.
        prompt_squares: Sum of the squares of those, by request.
        ended: Requests that left, one way or another.
        output_tokens: Of those that left.
    """

    started: Count = 0
    prefilled: Count = 0
    prefilled_tokens: Count = 0
    prompt_squares: Annotated[float, Meta(ge=0)] = 0.0
    ended: Count = 0
    output_tokens: Count = 0


class StepCostReport(msgspec.Struct, frozen=True):
    """What an engine step costs, as a verifier has learned it.

    Attributes:
        fixed_s: Of a step, seconds.
        row_s: Of one verified row.
        kv_s: Of one KV token of a sequence.
        draft_kv_s: Of one KV token that a draft token attends to.
        shapes: Execution shapes, rows; empty where steps are not padded.
        knot_rows: Numbers of rows that were measured,
        knot_s: and by how much their steps differ from the straight line.
        samples: Steps it was learned from.
        error: Usual error of a step's time, 0-1 of that time.
        sequence_s: Of one sequence, besides its row.
    """

    fixed_s: Seconds
    row_s: Seconds
    kv_s: Seconds
    draft_kv_s: Seconds
    shapes: Annotated[list[Count], Meta(max_length=512)] = []
    knot_rows: Annotated[list[Count], Meta(max_length=64)] = []
    knot_s: Annotated[list[float], Meta(max_length=64)] = []
    samples: Count = 0
    error: Ratio = 0.0
    sequence_s: Seconds = 0.0


class GovernorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a verifier's draft lengths are, and by what. Counts run since its start.

    Attributes:
        mode: `auto`, `fixed` or `off`.
        pressure: 0-5, from the front door.
        lengths: Sequences of all steps by the draft length chosen for them, from 0.
        reason: The commonest one of the last second; a word of `governor.Reason`.
        expected_tokens: Of decoding steps, as the governor expected them.
        real_tokens: Of the same steps, as they came.
        mean_length: Draft tokens a sequence, in recent steps.
        mean_rows: Sequences a step, in recent steps.
        mean_context: KV tokens a sequence, in recent steps.
        mean_found: Part of asked drafts that there are, as it is estimated, 0-1.
        acceptance: By place in the draft, as it is estimated for recent sequences.
        gain: Tokens that the best draft token was expected to bring in recent steps.
        gain_needed: Tokens that it would have had to bring to pay for itself.
        token_s: Expected time per token, seconds.
        wait_s: What a step takes longer when drafts are asked for, seconds.
        probes: Drafts that were made only to learn.
        step: What a step costs.
    """

    mode: Word
    pressure: Count
    lengths: Annotated[list[Count], Meta(max_length=65)]
    reason: Word
    expected_tokens: Annotated[float, Meta(ge=0)]
    real_tokens: Annotated[float, Meta(ge=0)]
    mean_length: Annotated[float, Meta(ge=0)]
    mean_rows: Annotated[float, Meta(ge=0)]
    mean_context: Annotated[float, Meta(ge=0)]
    mean_found: Ratio
    acceptance: Annotated[list[Ratio], Meta(max_length=64)]
    gain: Annotated[float, Meta(ge=0)]
    gain_needed: Annotated[float, Meta(ge=0)]
    token_s: Seconds
    wait_s: Seconds
    probes: Count
    step: StepCostReport


class VerifierReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="verifier"):
    """What a verifier says about itself. Counts run since its start.

    Attributes:
        requests_in_flight: In the verifier, whether the engine has begun them or not.
        cached_prompt_tokens: Prompt tokens whose KV was found, not computed.
        accepted_per_position: Accepted draft tokens by their place in the draft.
        steps: Engine steps.
        sequence_steps: Sum over steps of the sequences that got tokens in it.
        kv_cache_usage: Part of the KV cache in use, 0-1.
        ttft_sum_s: Times to first token, added up over `ttft_count` requests.
        draft_sources: By where drafts came from; empty without split drafting.
        draft_workers: The draft workers it knows by their ids, each with its state in words.
        deadline_misses: Drafts that were waited for in vain.
        draft_wait_s: Time spent waiting for drafts, added up.
        step_s: Recent time of one engine step, by kind of step.
        kv_endpoint: Where routers learn which KV blocks it holds; empty where they can't.
        block_tokens: Tokens of one of those blocks.
        governor: Draft lengths and what decides them; None without split drafting.
        requests_started: That came to the engine.
        prefilled_tokens: Prompt tokens that were computed for requests with a first token.
        prompt_squares: Sum of the squares of those, by request.
        busy_s: Time in which at least one request was in the engine.
        on_time: Of the ended requests those that met their class's targets in `autoscaling`; 0
            without it.
        queued_tokens: Prompt tokens that wait to be computed now,
        queued_batch_tokens: and of them those of requests that can wait.
        kv_tokens: Tokens that fit in the KV cache; 0 where it is not known.
        max_sequences: Most sequences in a step; 0 where it is not known.
        zone: Of its node, as Ray's label `ray.io/availability-zone` has it; may be empty.
        sharing: What it does with shared KV blocks; None where it shares none.
        batch: Of the counts those of requests that can wait; None: there was none.
    """

    worker_id: Text
    node_ip: Text
    pid: Count
    model: Text
    weights_fingerprint: Text
    started_at_s: Seconds
    requests_running: Count
    requests_waiting: Count
    requests_in_flight: Count
    requests_finished: Count
    requests_failed: Count
    requests_aborted: Count
    prompt_tokens: Count
    cached_prompt_tokens: Count
    output_tokens: Count
    drafted_tokens: Count
    accepted_tokens: Count
    accepted_per_position: ByPosition
    steps: Count
    sequence_steps: Count
    kv_cache_usage: Ratio
    ttft_sum_s: Seconds
    ttft_count: Count
    reported_at_s: Seconds
    draft_sources: Annotated[dict[Text, SourceCounts], Meta(max_length=16)] = {}
    draft_workers: Annotated[dict[Text, Text], Meta(max_length=64)] = {}
    deadline_misses: Count = 0
    draft_wait_s: Seconds = 0.0
    step_s: Annotated[dict[Text, Seconds], Meta(max_length=8)] = {}
    kv_endpoint: Text = ""
    block_tokens: Count = 0
    governor: GovernorReport | None = None
    requests_started: Count = 0
    prefilled_tokens: Count = 0
    prompt_squares: Annotated[float, Meta(ge=0)] = 0.0
    busy_s: Seconds = 0.0
    on_time: Count = 0
    queued_tokens: Count = 0
    queued_batch_tokens: Count = 0
    kv_tokens: Count = 0
    max_sequences: Count = 0
    zone: Text = ""
    sharing: SharingReport | None = None
    batch: BatchCounts | None = None
    protocol: int = PROTOCOL
