"""One request from the socket to the registry, step by step as in ARCHITECTURE.md."""

import json
import re
import time

import httpx
import pytest
from lines import MODEL, PORTS, Line

pytestmark = pytest.mark.line

REQUEST_ID = "follow-me-7c1"
METRICS_S = 5.0
"""From one report of a process's metrics to the next."""
PATIENT = 'class="batch"'
BY_CLASS = (
    "ray_paceline_requests_total",
    "ray_paceline_ttft_seconds_count",
    "ray_paceline_request_duration_seconds_count",
)


def metric(name: str, label: str = "") -> float:
    """Sum of a metric over the node, as Prometheus would scrape it, where it has this label."""
    text = httpx.get(f"http://127.0.0.1:{PORTS['metrics']}/metrics", timeout=10).text
    samples = re.findall(rf"^{name}({{[^}}]*}})? ([0-9.eE+-]+)$", text, re.M)
    return sum(float(value) for labels, value in samples if label in labels)


def settled(*names: str) -> list[float]:
    """Metrics once they no longer grow: those of earlier requests may still be on their way."""
    before: list[float] = []
    while (now := [metric(name) for name in names]) != before:
        before = now
        time.sleep(2 * METRICS_S + 1)
    return now


def until_more(name: str, before: float, timeout_s: float = 40, label: str = "") -> float:
    """Waits for a metric to grow; metrics travel every five seconds."""
    deadline_s = time.monotonic() + timeout_s
    while (now := metric(name, label)) <= before:
        assert time.monotonic() < deadline_s, f"{name} stayed at {before}"
        time.sleep(0.5)
    return now


def test_follow_one_request(drafting_line: Line) -> None:
    """HAProxy, router, front door, engine, stream, log line, metrics, registry."""
    line = drafting_line
    before = line.counts()
    picks, finished = settled("ray_paceline_router_picks_total", "ray_paceline_requests_total")
    by_class = {name: metric(name, PATIENT) for name in BY_CLASS}

    # 1 and 6. HAProxy takes it, keeps the client's id, and streams the answer back.
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count: one two three one two three one two"}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # It can wait, and is counted as one that can.
        "service_tier": "flex",
        # 3. What belongs to the engine is the server's to set.
        "priority": -5,
        "cache_salt": "a client's own",
    }
    with httpx.stream(
        "POST",
        f"{line.url}/v1/chat/completions",
        json=request,
        headers={"x-request-id": REQUEST_ID, "x-vllm-priority": "-9"},
        timeout=60,
    ) as answer:
        assert answer.status_code == 200
        events = [row[6:] for row in answer.iter_lines() if row.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["id"] == f"chatcmpl-{REQUEST_ID}"
    usage = chunks[-1]["usage"]

    # 5. The engine verified drafts and says how many, to the client and to us.
    speculation = chunks[-1]["metrics"]["speculative_decoding"]
    line.settle()
    after = line.counts()
    assert speculation["num_draft_tokens"] > 0
    assert after["drafted_tokens"] - before["drafted_tokens"] == speculation["num_draft_tokens"]

    # 6. One line in the verifier's log, under the id the client saw, with the same numbers.
    said = line.replica_logs()
    (row,) = [row for row in said.splitlines() if f"request id=chatcmpl-{REQUEST_ID}" in row]
    fields = dict(re.findall(r"(\w+)=(\S+)", row))
    assert fields["outcome"] == "finished"
    assert fields["class"] == "batch"
    assert fields["model"] == MODEL
    assert int(fields["prompt_tokens"]) == usage["prompt_tokens"]
    assert int(fields["output_tokens"]) == usage["completion_tokens"]
    assert int(fields["drafted"]) == speculation["num_draft_tokens"]
    assert int(fields["accepted"]) == speculation["num_accepted_draft_tokens"]
    assert float(fields["ttft_ms"]) > 0
    assert "Count: one two" not in said

    # 2 and 6. The router counted its pick, the verifier the request; the registry has the totals.
    assert until_more("ray_paceline_router_picks_total", picks) == picks + 1
    assert until_more("ray_paceline_requests_total", finished) == finished + 1
    for name in BY_CLASS:
        assert until_more(name, by_class[name], label=PATIENT) == by_class[name] + 1
    assert after["requests_finished"] == before["requests_finished"] + 1
    (verifier,) = line.status()["verifiers"]
    assert verifier["report"]["worker_id"] == fields["replica"]
