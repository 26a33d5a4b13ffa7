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

import logging
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

import msgspec

from kvstore.draft_report import DraftWorkerReport
from kvstore.errors import InvalidReport
from kvstore.kv_reports import KvServerReport
from kvstore.redis_client import RedisSettings, connect, connect_blocking, store_errors
from kvstore.report_types import PROTOCOL
from kvstore.verifier_report import VerifierReport

logger = logging.getLogger(__name__)

MAX_REPORT_BYTES = 64 * 1024
MAX_WORKERS = 4096  # Of one kind; the index keeps the latest.
TTL_S = 5.0
FORGET_AFTER_S = 3600

WorkerKind = Literal["verifier", "draft", "kv"]


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
        kind, worker_id = kind_of(report), report.worker_id
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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


class _Envelope(msgspec.Struct):
    """The part of a report that every version of us can read."""

    protocol: int
    kind: str


_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def kind_of(report: Report) -> WorkerKind:
    """Which kind of worker says this."""
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
    if (kind_of(report), report.worker_id) != (kind, worker_id):
        raise ValueError(f"it speaks for {kind_of(report)} {report.worker_id!r}")
    return report
