"""What draft workers of tests tell the registry."""

from kvstore.draft_report import DraftWorkerReport


def draft_report(worker_id: str = "d", **changes: object) -> DraftWorkerReport:
    """Of a worker that has worked a little."""
    fields = {
        "worker_id": worker_id,
        "node_ip": "10.0.0.1",
        "pid": 43,
        "endpoint": "tcp://10.0.0.1:31001",
        "protocols": [1],
        "kinds": ["prompt_lookup"],
        "tokenizer_fingerprint": "f" * 64,
        "vocab_size": 49_152,
        "sessions": 3,
        "context_tokens": 3_000,
        "asks": 100,
        "drafted_tokens": 400,
        "malformed": {"version 9": 2},
        "evicted_sessions": 1,
        "busy_ratio": 0.5,
        "started_at_s": 1_000.0,
        "reported_at_s": 1_060.0,
    }
    return DraftWorkerReport(**{**fields, **changes})
