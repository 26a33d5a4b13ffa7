"""Who is alive in the cluster: reports that workers put into Redis and refresh.

    paceline:{cluster}:worker:{kind}:{id}   one report, msgpack; gone when not refreshed
    paceline:{cluster}:workers:{kind}       ids by the time of their last report
    paceline:{cluster}:starts:{kind}        how many workers ever came up

The ids have an index because Redis may also hold millions of KV blocks, which a SCAN
would walk through. An id stays in it for an hour after its last report, so that no
reader has to remove one that a worker is just putting back.

What is read is checked: size, protocol version, types and ranges. What does not pass
is left out, named and counted.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, cast, overload

import msgspec
from msgspec import Meta

from kvstore.errors import InvalidReport, StoreError, StoreUnavailable
from kvstore.kv_reports import SharingReport, TierReport
from kvstore.redis_client import RedisSettings, connect, connect_blocking, store_errors

logger = logging.getLogger(__name__)

PROTOCOL = 1  # One more whenever an older reader would misunderstand a report.
MAX_REPORT_BYTES = 64 * 1024
MAX_WORKERS = 4096  # Of one kind; the index keeps the latest.
TTL_S = 5.0
FORGET_AFTER_S = 3600
MAX_BACKOFF_S = 5.0

WorkerKind = Literal["verifier", "draft", "kv"]
Text = Annotated[str, Meta(max_length=256)]
Word = Annotated[str, Meta(max_length=32)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
ByPosition = Annotated[list[Count], Meta(max_length=64)]


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


class NgramReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft worker says about the fleet's n-grams. Counts run since its start.

    Attributes:
        tokens: In its index.
        documents: In its index.
        held_bytes: Memory of the index, full or not.
        corpus_tokens: Of operators' corpora.
        lookups: In the index.
        hits: Of those, that found something.
        evicted_tokens: Given up for new ones.
        connected: Whether it exchanges texts with the others now.
        published: Texts given to the others.
        received: Texts taken from them.
        lost: Own texts the others will not see, and batches of others that never came.
        garbage: Entries that could not be believed.
        delay_s: From the end of the latest text received to its being there, seconds.
        gates_closed: Sources that are left alone now because their drafts did not pay.
    """

    tokens: Count
    documents: Count
    held_bytes: Count
    corpus_tokens: Count
    lookups: Count
    hits: Count
    evicted_tokens: Count
    connected: bool
    published: Count
    received: Count
    lost: Count
    garbage: Count
    delay_s: Seconds
    gates_closed: Count


class DraftModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft worker says about its model. Counts run since its start.

    Attributes:
        name: Folder or hub id.
        places: Sequences that it drafts at once.
        running: Of these, in use.
        asked: Asks that wanted tokens of it.
        ready: Of those, answered in full at once, because it had run ahead.
        branched: Of those, by a prepared rejection.
        restarted: Times a text went a way that was not prepared.
        generated: Tokens, prepared rejections included.
        step_s: Usual time of one of its steps, seconds.
        busy_ratio: Part of the time since the last report in which it computed, 0-1.
    """

    name: Text
    places: Count
    running: Count
    asked: Count
    ready: Count
    branched: Count
    restarted: Count
    generated: Count
    step_s: Seconds
    busy_ratio: Ratio


class DraftWorkerReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="draft"):
    """What a draft worker says about itself. Counts run since its start.

    Attributes:
        endpoint: `tcp://host:port`, where verifiers ask.
        protocols: Versions of the messages that it can read and write.
        kinds: Draft kinds of the config, in the order in which it tries them.
        tokenizer_fingerprint: Verifiers ask only workers whose token ids mean the same.
        vocab_size: Tokens; it drafts none outside.
        sessions: Whose contexts it holds now.
        context_tokens: Tokens of those contexts.
        asks: What was asked, counted by session.
        drafted_tokens: Sent, whether anybody verified them or not.
        malformed: Messages it dropped, by the check that failed.
        evicted_sessions: Sessions whose contexts it gave up for want of memory.
        busy_ratio: Part of the time since the last report in which it worked, 0-1.
        ngrams: Of kind `ngram_index`; None without it.
        zone: As of a verifier.
        model: Of kind `model`; None without it.
    """

    worker_id: Text
    node_ip: Text
    pid: Count
    endpoint: Text
    protocols: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    kinds: Annotated[list[Word], Meta(max_length=16)]
    tokenizer_fingerprint: Text
    vocab_size: Count
    sessions: Count
    context_tokens: Count
    asks: Count
    drafted_tokens: Count
    malformed: Annotated[dict[Word, Count], Meta(max_length=16)]
    evicted_sessions: Count
    busy_ratio: Ratio
    started_at_s: Seconds
    reported_at_s: Seconds
    ngrams: NgramReport | None = None
    zone: Text = ""
    model: DraftModelReport | None = None
    protocol: int = PROTOCOL


class KvServerReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="kv"):
    """What is said of one node's LMCache server. Counts run since the server's start.

    Attributes:
        pid: Of the server; 0 while there is none.
        is_healthy: Whether it answers.
        starts: How often it was started; more than one means that it was lost.
        tiers: Behind its memory.
    """

    worker_id: Text
    node_ip: Text
    pid: Count
    is_healthy: bool
    starts: Count
    tiers: Annotated[list[TierReport], Meta(max_length=8)]
    started_at_s: Seconds
    reported_at_s: Seconds
    protocol: int = PROTOCOL


Report = VerifierReport | DraftWorkerReport | KvServerReport
R_co = TypeVar("R_co", bound=Report, covariant=True)


@dataclass(frozen=True)
class Listing(Generic[R_co]):
    """The live workers of one kind.

    Attributes:
        reports: Latest first.
        skipped: A line for each entry that was left out: which, and why.
        starts: Workers that came up since the cluster did; more than live ones means restarts.
    """

    reports: tuple[R_co, ...]
    skipped: tuple[str, ...]
    starts: int


class Registry:
    """The registry of one cluster, for the event loop. Connects on first use.

    Args:
        settings: Where Redis is.
        cluster: Name of the cluster; clusters that share a Redis don't see each other.
        ttl_s: How long a report counts without a fresh one.
    """

    def __init__(self, settings: RedisSettings, cluster: str, ttl_s: float = TTL_S) -> None:
        self._settings = settings
        self._cluster = cluster
        self._ttl_ms = round(ttl_s * 1000)
        self._client = connect(settings)
        self._announced: set[tuple[WorkerKind, str]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. What was announced stays until it expires."""
        await self._client.aclose()

    async def announce(self, report: Report) -> None:
        """Tell the cluster that a worker lives; counts for `ttl_s`.

        Raises:
            InvalidReport: readers would leave it out.
            StoreUnavailable: Redis did not take it.
        """
        kind, worker_id = _kind(report), report.worker_id
        value = _encoder.encode(report)
        try:
            _checked(kind, worker_id, value)
        except ValueError as error:
            raise InvalidReport(worker_id, str(error)) from error
        index, starts = _index_key(self._cluster, kind), _starts_key(self._cluster, kind)
        with store_errors(self._settings):
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(_report_key(self._cluster, kind, worker_id), value, px=self._ttl_ms)
                pipe.zadd(index, {worker_id: report.reported_at_s})
                pipe.zremrangebyscore(index, "-inf", report.reported_at_s - FORGET_AFTER_S)
                pipe.zremrangebyrank(index, 0, -MAX_WORKERS - 1)
                pipe.expire(index, FORGET_AFTER_S)
                if (kind, worker_id) not in self._announced:
                    pipe.incr(starts)
                pipe.expire(starts, FORGET_AFTER_S)
                await pipe.execute()
        self._announced.add((kind, worker_id))

    async def withdraw(self, kind: WorkerKind, worker_id: str) -> None:
        """Tell the cluster that a worker leaves. Nothing happens if it was not there.

        Raises:
            StoreUnavailable: Redis did not take it; the report expires by itself.
        """
        with store_errors(self._settings):
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.delete(_report_key(self._cluster, kind, worker_id))
                pipe.zrem(_index_key(self._cluster, kind), worker_id)
                await pipe.execute()

    @overload
    async def live(self, kind: Literal["verifier"]) -> Listing[VerifierReport]: ...

    @overload
    async def live(self, kind: Literal["draft"]) -> Listing[DraftWorkerReport]: ...

    @overload
    async def live(self, kind: Literal["kv"]) -> Listing[KvServerReport]: ...

    async def live(self, kind: WorkerKind) -> Listing[Any]:
        """Who is alive now.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        with store_errors(self._settings):
            async with self._client.pipeline(transaction=False) as pipe:
                _ask_who(pipe, self._cluster, kind)
                ids, starts = _who(await pipe.execute())
                _ask_reports(pipe, self._cluster, kind, ids)
                values = await pipe.execute(raise_on_error=False)
        return _listing(kind, ids, values, starts)


@overload
def read_live(
    settings: RedisSettings, cluster: str, kind: Literal["verifier"]
) -> Listing[VerifierReport]: ...


@overload
def read_live(
    settings: RedisSettings, cluster: str, kind: Literal["draft"]
) -> Listing[DraftWorkerReport]: ...


@overload
def read_live(
    settings: RedisSettings, cluster: str, kind: Literal["kv"]
) -> Listing[KvServerReport]: ...


def read_live(settings: RedisSettings, cluster: str, kind: WorkerKind) -> Listing[Any]:
    """Who is alive now, for callers without an event loop.

    Raises:
        StoreUnavailable: Redis can't be asked.
    """
    with (
        store_errors(settings),
        connect_blocking(settings) as client,
        client.pipeline(transaction=False) as pipe,
    ):
        _ask_who(pipe, cluster, kind)
        ids, starts = _who(pipe.execute())
        _ask_reports(pipe, cluster, kind, ids)
        values = pipe.execute(raise_on_error=False)
    return _listing(kind, ids, values, starts)


class Heartbeat:
    """Announces a worker again and again, until it is closed; then withdraws it.

    The owner never gets an error from it. While Redis is lost it logs once, keeps
    trying at growing intervals, and counts.

    Args:
        registry: Where to announce; stays the caller's to close.
        make_report: Called for each beat, on the event loop.
        period_s: From one beat to the next; well below the registry's `ttl_s`.

    Attributes:
        beats: Reports that Redis took.
        misses: Reports that it did not take.
    """

    def __init__(
        self, registry: Registry, make_report: Callable[[], Report], period_s: float
    ) -> None:
        self.beats = 0
        self.misses = 0
        self._registry = registry
        self._make_report = make_report
        self._period_s = period_s
        self._last: Report | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to beat; the first beat follows at once."""
        self._task = asyncio.create_task(self._run(), name="registry-heartbeat")

    async def close(self) -> None:
        """Stop, and withdraw the worker if Redis can be reached."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        if self._last is not None:
            with suppress(StoreUnavailable):
                await self._registry.withdraw(_kind(self._last), self._last.worker_id)

    async def _run(self) -> None:
        missed = 0  # In a row.
        while True:
            try:
                report = self._make_report()
                await self._registry.announce(report)
            except Exception as error:
                self.misses += 1
                missed += 1
                if missed == 1:
                    known = isinstance(error, StoreError)
                    logger.warning("registry heartbeat=lost error=%s", error, exc_info=not known)
            else:
                self._last = report
                self.beats += 1
                if missed:
                    logger.info("registry heartbeat=back missed=%d", missed)
                missed = 0
            await asyncio.sleep(min(self._period_s * 2 ** min(missed, 8), MAX_BACKOFF_S))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


class _Envelope(msgspec.Struct):
    """The part of a report that every version of us can read."""

    protocol: int
    kind: str


_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def _kind(report: Report) -> WorkerKind:
    return cast(WorkerKind, report.__struct_config__.tag)


def _report_key(cluster: str, kind: WorkerKind, worker_id: str) -> str:
    return f"paceline:{cluster}:worker:{kind}:{worker_id}"


def _index_key(cluster: str, kind: WorkerKind) -> str:
    return f"paceline:{cluster}:workers:{kind}"


def _starts_key(cluster: str, kind: WorkerKind) -> str:
    return f"paceline:{cluster}:starts:{kind}"


def _ask_who(pipe: Any, cluster: str, kind: WorkerKind) -> None:
    pipe.zrevrange(_index_key(cluster, kind), 0, MAX_WORKERS - 1)
    pipe.get(_starts_key(cluster, kind))


def _who(answers: list[Any]) -> tuple[list[str], int]:
    ids, starts = answers
    return [worker_id.decode(errors="replace") for worker_id in ids], int(starts or 0)


def _ask_reports(pipe: Any, cluster: str, kind: WorkerKind, ids: list[str]) -> None:
    for worker_id in ids:  # A range, so that a giant value is not fetched to be refused.
        pipe.getrange(_report_key(cluster, kind, worker_id), 0, MAX_REPORT_BYTES)


def _listing(kind: WorkerKind, ids: list[str], values: list[Any], starts: int) -> Listing[Report]:
    reports, skipped = [], []
    for worker_id, value in zip(ids, values, strict=True):
        if value == b"":
            continue  # Expired, or withdrawn.
        try:
            reports.append(_checked(kind, worker_id, value))
        except ValueError as error:
            skipped.append(f"{kind} {worker_id[:256]!r} is left out: {error}")
    return Listing(tuple(reports), tuple(skipped), starts)


def _checked(kind: WorkerKind, worker_id: str, value: Any) -> Report:
    """The report that a key holds.

    Raises:
        ValueError: it holds something else; says what.
    """
    if not isinstance(value, bytes):
        raise ValueError(f"Redis answers: {value}")
    if len(value) > MAX_REPORT_BYTES:
        raise ValueError(f"it has more than {MAX_REPORT_BYTES} bytes")
    try:
        protocol = _envelope_decoder.decode(value).protocol
        if protocol != PROTOCOL:
            raise ValueError(f"it speaks protocol {protocol}, this process {PROTOCOL}")
        report = _decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it is no report ({error})") from error
    if (_kind(report), report.worker_id) != (kind, worker_id):
        raise ValueError(f"it speaks for {_kind(report)} {report.worker_id!r}")
    return report
