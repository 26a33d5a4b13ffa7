"""The last scaling decision travels through Redis, and nothing else passes for one."""

import msgspec
import pytest

from kvstore.redis_client import RedisSettings, connect_blocking
from kvstore.scaling_report import (
    MAX_BYTES,
    PoolReport,
    ScalingReport,
    read_scaling,
    scaling_key,
    write_scaling,
)

DECIDED = ScalingReport(
    at_s=1.0,
    verifiers=PoolReport(1, 1, 3, 3, "from 1 to 3: so"),
    draft_workers=PoolReport(0, 0, 0, 0, "nothing is asked"),
    rate=2.5,
    cold_start_s=42.0,
)


@pytest.fixture
def settings(redis_server) -> RedisSettings:
    return redis_server.settings


def test_what_was_written_is_read(settings: RedisSettings) -> None:
    """Of this cluster only, and it is kept for a while."""
    assert read_scaling(settings, "c") is None
    write_scaling(settings, "c", DECIDED)
    assert read_scaling(settings, "c") == DECIDED
    assert read_scaling(settings, "other") is None
    with connect_blocking(settings) as client:
        assert 0 < client.ttl(scaling_key("c")) <= 3600


@pytest.mark.parametrize(
    "value",
    [
        b"garbage",
        b"\x81" * 100_000,
        msgspec.msgpack.encode({"at_s": 1.0}),
        msgspec.msgpack.encode(msgspec.structs.replace(DECIDED, protocol=2)),
        msgspec.msgpack.encode(msgspec.structs.replace(DECIDED, rate=-1.0)),
        b"x" * (MAX_BYTES + 1),
    ],
)
def test_what_is_no_decision_reads_as_none(settings: RedisSettings, value: bytes) -> None:
    """Garbage, other versions, impossible numbers and giants."""
    with connect_blocking(settings) as client:
        client.set(scaling_key("c"), value)
    assert read_scaling(settings, "c") is None
