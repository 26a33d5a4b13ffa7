"""The instruments of requests; Serve adds tags for application, deployment and replica."""

from ray.serve.metrics import Counter, Gauge, Histogram

TTFT_BUCKETS_S = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
DURATION_BUCKETS_S = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]


class RequestMetrics:
    """One of each."""

    def __init__(self) -> None:
        self.requests = Counter(
            "paceline_requests_total",
            description="Requests ended.",
            tag_keys=("outcome", "class"),
        )
        self.refused = Counter(
            "paceline_refused_total",
            description="Requests the front door refused.",
            tag_keys=("reason",),
        )
        self.in_flight = Gauge("paceline_requests_in_flight", description="Requests in the engine.")
        self.waiting = Gauge(
            "paceline_requests_waiting", description="Requests the engine has not begun."
        )
        self.prompt_tokens = Counter(
            "paceline_prompt_tokens_total", description="Prompt tokens of ended requests."
        )
        self.cached_prompt_tokens = Counter(
            "paceline_cached_prompt_tokens_total",
            description="Prompt tokens whose KV was found, not computed.",
        )
        self.output_tokens = Counter(
            "paceline_output_tokens_total", description="Tokens generated."
        )
        self.drafted_tokens = Counter(
            "paceline_drafted_tokens_total", description="Draft tokens verified."
        )
        self.accepted_tokens = Counter(
            "paceline_accepted_tokens_total", description="Draft tokens accepted."
        )
        self.kv_cache_usage = Gauge(
            "paceline_kv_cache_usage_ratio", description="Part of the KV cache in use, 0-1."
        )
        self.ttft_s = Histogram(
            "paceline_ttft_seconds",
            description="From a request's arrival at the engine to its first token.",
            boundaries=TTFT_BUCKETS_S,
            tag_keys=("class",),
        )
        self.duration_s = Histogram(
            "paceline_request_duration_seconds",
            description="From a request's arrival at the engine to its end.",
            boundaries=DURATION_BUCKETS_S,
            tag_keys=("class",),
        )
