"""Who is alive, as Redis knows it and as readers may believe it."""

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_server import RedisServer

from kvstore.draft_report import DraftWorkerReport
from kvstore.errors import InvalidReport, StoreUnavailable
from kvstore.heartbeat import Heartbeat
from kvstore.registry import MAX_REPORT_BYTES, MAX_WORKERS, Registry, _checked, read_live
from kvstore.verifier_report import SourceCounts, VerifierReport

Make = Callable[..., VerifierReport]
MakeDraft = Callable[..., DraftWorkerReport]


async def test_an_announced_worker_is_live_until_it_withdraws(
    registry: Registry, make_report: Make
) -> None:
    """What one worker says about itself, every reader gets whole."""
    report = make_report()
    await registry.announce(report)
    assert (await registry.live("verifier")).reports == (report,)
    await registry.withdraw("verifier", "a")
    listing = await registry.live("verifier")
    assert (listing.reports, listing.skipped, listing.starts) == ((), (), 1)


async def test_the_blocking_reader_sees_the_same(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """Commands without an event loop get the listing that the event loop gets."""
    await registry.announce(make_report("a"))
    await registry.announce(make_report("b", reported_at_s=1_061.0))
    listing = await asyncio.to_thread(read_live, redis_server.settings, "one", "verifier")
    assert listing == await registry.live("verifier")
    assert [report.worker_id for report in listing.reports] == ["b", "a"]


async def test_workers_of_each_kind_are_listed_by_themselves(
    registry: Registry, redis_server: RedisServer, make_report: Make, make_draft_report: MakeDraft
) -> None:
    """Verifiers and draft workers share ids at will, and neither shows among the others."""
    verifier, drafter = make_report("same"), make_draft_report("same")
    await registry.announce(verifier)
    await registry.announce(drafter)
    assert (await registry.live("verifier")).reports == (verifier,)
    drafters = await registry.live("draft")
    assert (drafters.reports, drafters.skipped, drafters.starts) == ((drafter,), (), 1)
    assert await asyncio.to_thread(read_live, redis_server.settings, "one", "draft") == drafters
    await registry.withdraw("draft", "same")
    assert (await registry.live("draft")).reports == ()
    assert (await registry.live("verifier")).reports == (verifier,)


async def test_a_verifier_tells_of_its_drafting(registry: Registry, make_report: Make) -> None:
    """Sources by position, draft workers and times arrive as they were told, or stay empty."""
    drafting = make_report(
        "drafting",
        draft_sources={"model": SourceCounts([9, 5], [7, 2])},
        draft_workers={"d": "answers"},
        deadline_misses=3,
        draft_wait_s=0.5,
        step_s={"drafted": 0.01},
    )
    await registry.announce(drafting)
    await registry.announce(make_report("plain", reported_at_s=1_000.0))
    told, plain = (await registry.live("verifier")).reports
    assert told == drafting
    assert (plain.draft_sources, plain.draft_workers, plain.step_s) == ({}, {}, {})
    assert (plain.deadline_misses, plain.draft_wait_s) == (0, 0.0)


async def test_the_largest_report_that_the_types_allow_is_taken(
    registry: Registry, make_report: Make, make_draft_report: MakeDraft
) -> None:
    """A busy worker with every table full is still announced."""
    full = [1 << 32] * 64
    await registry.announce(
        make_report(
            draft_sources={f"source {i}": SourceCounts(full, full) for i in range(16)},
            draft_workers={f"{i:0>64}": "w" * 256 for i in range(64)},
        )
    )
    await registry.announce(
        make_draft_report(malformed={f"{i:0>32}": 1 << 60 for i in range(16)}, kinds=["k"] * 16)
    )


async def test_a_silent_worker_expires(redis_server: RedisServer, make_report: Make) -> None:
    """A worker that stops announcing is gone after its time, and nothing has to remove it."""
    async with Registry(redis_server.settings, "one", ttl_s=0.05) as registry:
        await registry.announce(make_report())
        await asyncio.sleep(0.1)
        listing = await registry.live("verifier")
    assert (listing.reports, listing.skipped) == ((), ())


async def test_clusters_that_share_a_redis_do_not_see_each_other(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """A cluster lists its own workers only."""
    await registry.announce(make_report())
    listing = await asyncio.to_thread(read_live, redis_server.settings, "two", "verifier")
    assert listing.reports == ()


async def test_starts_count_workers_and_not_heartbeats(
    registry: Registry, make_report: Make
) -> None:
    """Restarts show: each worker that came up counts once, however often it announces."""
    for worker_id in ("a", "a", "b", "a"):
        await registry.announce(make_report(worker_id))
    assert (await registry.live("verifier")).starts == 2


async def test_nothing_is_kept_for_ever(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """Every key has a time to live, and the index holds neither old ids nor too many."""
    with redis_server.client() as client:
        client.zadd("paceline:one:workers:verifier", {"long-gone": 0.0})
        client.zadd("paceline:one:workers:verifier", {f"w{i}": 1_000.0 for i in range(MAX_WORKERS)})
        await registry.announce(make_report(reported_at_s=4_000.0))
        assert client.zscore("paceline:one:workers:verifier", "long-gone") is None
        assert client.zcard("paceline:one:workers:verifier") == MAX_WORKERS
        assert all(client.ttl(key) > 0 for key in client.scan_iter())


BAD_ENTRIES: dict[str, tuple[bytes | dict[str, object], str]] = {
    "noise": (b"\xc1\x00\xff", "no report"),
    "a bomb": (b"\x83\xa1x" + b"\x91" * 15_000, "no report"),
    "a promise of 4 GB": (b"\xdf\xff\xff\xff\xff", "no report"),
    "a giant": (bytes(MAX_REPORT_BYTES + 1), "more than"),
    "half a report": (b"\x99\xa4kind\xa8verifier", "no report"),
    "a foreign version": ({"protocol": 99, "pid": None}, "protocol 99"),
    "another kind": ({"kind": "toaster"}, "no report"),
    "a text for a number": ({"pid": "42"}, "no report"),
    "an impossible ratio": ({"kv_cache_usage": 1.5}, "no report"),
    "a negative count": ({"output_tokens": -1}, "no report"),
    "an endless list": ({"accepted_per_position": [1] * 65}, "no report"),
    "too many sources": (
        {"draft_sources": {str(i): [[], []] for i in range(17)}},
        "no report",
    ),
    "a draft of 65": (
        {"draft_sources": {"model": {"drafted": [1] * 65, "accepted": []}}},
        "no report",
    ),
    "too many draft workers": ({"draft_workers": {str(i): "" for i in range(65)}}, "no report"),
    "a draft worker": ({"kind": "draft"}, "no report"),
    "another's name": ({"worker_id": "b"}, "speaks for verifier 'b'"),
}


@pytest.mark.parametrize(("entry", "reason"), BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
async def test_a_bad_entry_is_left_out_and_named(
    registry: Registry,
    redis_server: RedisServer,
    make_report: Make,
    entry: bytes | dict[str, object],
    reason: str,
) -> None:
    """Garbage in Redis never hides a good report, and a reader is told which entry it was.

    An entry is given as its bytes, or as what is different from a good one.
    """
    if isinstance(entry, dict):
        entry = msgspec.msgpack.encode({**msgspec.to_builtins(make_report()), **entry})
    await registry.announce(make_report("good"))
    with redis_server.client() as client:
        client.zadd("paceline:one:workers:verifier", {"a": 1_060.0})
        client.set("paceline:one:worker:verifier:a", entry)
    listing = await registry.live("verifier")
    assert [report.worker_id for report in listing.reports] == ["good"]
    (line,) = listing.skipped
    assert "'a'" in line and reason in line


BAD_DRAFT_FIELDS: dict[str, object] = {
    "protocols": [],
    "kinds": ["k" * 33],
    "endpoint": "tcp://" + "h" * 256,
    "malformed": {str(i): 1 for i in range(17)},
    "busy_ratio": 1.1,
    "vocab_size": -1,
}


@pytest.mark.parametrize(("field", "value"), BAD_DRAFT_FIELDS.items())
async def test_a_draft_worker_keeps_its_bounds(
    registry: Registry, make_draft_report: MakeDraft, field: str, value: object
) -> None:
    """What verifiers would choke on is refused where it is said, and left out where it is read."""
    with pytest.raises(InvalidReport, match="'d'"):
        await registry.announce(make_draft_report(**{field: value}))


async def test_an_entry_of_another_redis_type_is_left_out(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """A list where a report should be costs that entry only."""
    await registry.announce(make_report("good"))
    with redis_server.client() as client:
        client.zadd("paceline:one:workers:verifier", {"a": 1_060.0})
        client.rpush("paceline:one:worker:verifier:a", "x")
    listing = await registry.live("verifier")
    assert len(listing.reports) == len(listing.skipped) == 1


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


async def test_a_pickle_is_never_run(
    registry: Registry, redis_server: RedisServer, make_report: Make, tmp_path: Path
) -> None:
    """Who can write into Redis still can't run code in a reader."""
    marker = tmp_path / "ran"
    trap = pickle.dumps(Trap(marker))
    pickle.loads(trap)
    assert marker.exists(), "the trap works"
    marker.unlink()
    await registry.announce(make_report())
    with redis_server.client() as client:
        client.set("paceline:one:worker:verifier:a", trap)
    assert len((await registry.live("verifier")).skipped) == 1
    assert len(read_live(redis_server.settings, "one", "verifier").skipped) == 1
    assert not marker.exists()


@given(st.binary(max_size=300))
def test_no_bytes_surprise_a_reader(value: bytes) -> None:
    """Whatever a key holds, a reader gets a report or a reason, never another error."""
    with pytest.raises(ValueError, match=r".+"):
        _checked("verifier", "a", value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"model": "m" * MAX_REPORT_BYTES}, "more than"), ({"kv_cache_usage": 1.01}, "<= 1.0")],
)
async def test_a_report_that_readers_would_leave_out_is_not_sent(
    registry: Registry, make_report: Make, changes: dict[str, object], reason: str
) -> None:
    """A sender hears of its own mistake, where it can be mended."""
    with pytest.raises(InvalidReport, match=f"'a'.*{reason}"):
        await registry.announce(make_report(**changes))


async def test_every_verb_names_a_lost_redis(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """A lost Redis is one kind of error, with an address and without a password."""
    redis_server.kill()
    for verb in (
        registry.announce(make_report()),
        registry.withdraw("verifier", "a"),
        registry.live("verifier"),
        asyncio.to_thread(read_live, redis_server.settings, "one", "verifier"),
    ):
        with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{redis_server.port}") as lost:
            await verb
        assert str(redis_server.settings.password) not in str(lost.value)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that has to happen soon."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_heartbeat_keeps_a_worker_alive_and_takes_it_away(
    redis_server: RedisServer, make_report: Make
) -> None:
    """A worker is live for as long as its heartbeat runs, past any one report's time."""
    async with Registry(redis_server.settings, "one", ttl_s=0.3) as registry:
        async with Heartbeat(registry, make_report, period_s=0.05) as heartbeat:
            await until(lambda: heartbeat.beats > 10)
            listing = await registry.live("verifier")
            assert (len(listing.reports), listing.starts) == (1, 1)
        assert (await registry.live("verifier")).reports == ()


async def test_a_heartbeat_outlives_redis(
    registry: Registry,
    redis_server: RedisServer,
    make_report: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Redis killed and restarted empty: one line in the log, and the worker is back."""
    caplog.set_level("INFO", logger="kvstore")
    async with Heartbeat(registry, make_report, period_s=0.02) as heartbeat:
        await until(lambda: heartbeat.beats > 0)
        redis_server.kill()
        await until(lambda: heartbeat.misses > 1)
        redis_server.start()
        seen = heartbeat.beats
        await until(lambda: heartbeat.beats > seen)
        assert len((await registry.live("verifier")).reports) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_heartbeat_survives_a_report_that_cannot_be_made(
    registry: Registry, make_report: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the owner's own report is logged with its place, and never ends the beat."""
    broken = True

    def make() -> VerifierReport:
        if broken:
            raise ZeroDivisionError
        return make_report()

    async with Heartbeat(registry, make, period_s=0.01) as heartbeat:
        await until(lambda: heartbeat.misses > 2)
        broken = False
        await until(lambda: heartbeat.beats > 0)
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert record.exc_info


async def test_closing_a_heartbeat_without_redis_is_quiet(
    registry: Registry, redis_server: RedisServer, make_report: Make
) -> None:
    """A worker that leaves while Redis is lost just leaves."""
    async with Heartbeat(registry, make_report, period_s=0.02) as heartbeat:
        await until(lambda: heartbeat.beats > 0)
        redis_server.kill()
