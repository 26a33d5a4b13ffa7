"""What the tests of this room share."""

from collections.abc import AsyncIterator, Callable

import pytest
from draft_reports import draft_report
from redis_server import RedisServer

from kvstore.draft_report import DraftWorkerReport
from kvstore.registry import Registry
from kvstore.verifier_report import VerifierReport


@pytest.fixture
async def registry(redis_server: RedisServer) -> AsyncIterator[Registry]:
    """The registry of cluster `one`."""
    async with Registry(redis_server.settings, "one") as registry:
        yield registry


@pytest.fixture
def make_report() -> Callable[..., VerifierReport]:
    """Makes a report of a verifier that has worked a little."""

    def make(worker_id: str = "a", **changes: object) -> VerifierReport:
        fields = {
            "worker_id": worker_id,
            "node_ip": "10.0.0.1",
            "pid": 42,
            "model": "m",
            "weights_fingerprint": "f" * 64,
            "started_at_s": 1_000.0,
            "requests_running": 1,
            "requests_waiting": 2,
            "requests_in_flight": 3,
            "requests_finished": 4,
            "requests_failed": 0,
            "requests_aborted": 1,
            "prompt_tokens": 100,
            "cached_prompt_tokens": 64,
            "output_tokens": 50,
            "drafted_tokens": 40,
            "accepted_tokens": 30,
            "accepted_per_position": [20, 10],
            "steps": 20,
            "sequence_steps": 22,
            "kv_cache_usage": 0.25,
            "ttft_sum_s": 1.5,
            "ttft_count": 4,
            "reported_at_s": 1_060.0,
        }
        return VerifierReport(**{**fields, **changes})

    return make


@pytest.fixture
def make_draft_report() -> Callable[..., DraftWorkerReport]:
    """Makes a report of a draft worker that has worked a little."""
    return draft_report
