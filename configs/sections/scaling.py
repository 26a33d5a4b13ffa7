"""How many there are."""

from pydantic import Field

from configs.request_class import BATCH
from configs.sections.values import Section


class AutoscalingConfig(Section):
    """How many verifiers and draft workers there are, by the load (docs/autoscaling.md).

    Left out: as many as `verifiers.replicas` and `drafting.split.workers.replicas` say.
    """

    max_verifiers: int = Field(
        ge=1,
        le=1024,
        description="Most verifiers. The fewest, and how many there are at the start, says "
        "`verifiers.replicas`.",
    )
    max_draft_workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Most draft workers. The fewest says `drafting.split.workers.replicas`, where "
        "0 lets them go while drafts don't pay. None: that number, always.",
    )
    ttft_s: float = Field(
        2.0,
        gt=0,
        le=600,
        description="Target: from a request's arrival to its first token, seconds.",
    )
    tpot_ms: float = Field(
        100.0,
        gt=0,
        le=60000,
        description="Target: time per token after the first, milliseconds.",
    )
    batch_ttft_s: float = Field(
        60.0,
        gt=0,
        le=86400,
        description="The same targets for requests that can wait (`service_tier: flex`): to the "
        "first token, seconds,",
    )
    batch_tpot_ms: float = Field(
        500.0, gt=0, le=60000, description="and time per token after it, milliseconds."
    )
    attainment: float = Field(
        0.95, ge=0.5, le=0.999, description="Part of the requests (0-1) that shall meet both."
    )
    utilization: float = Field(
        0.8,
        gt=0,
        le=0.95,
        description="Part of a verifier's time (0-1) that may be planned with. Queues grow as "
        "u/(1-u): at 0.8 a request waits for four others, at 0.95 for nineteen.",
    )
    window_s: float = Field(
        60.0, ge=5, le=3600, description="Time over which arrivals and lengths are averaged, s."
    )
    keep_s: float = Field(
        120.0,
        ge=5,
        le=86400,
        description="How long fewer must have been enough before any is let go, seconds; at least "
        "`window_s`.",
    )
    cold_start_s: float = Field(
        60.0,
        ge=0,
        le=7200,
        description="From the decision to start a verifier to its first answer, seconds. Replaced "
        "by what is seen once one has been started.",
    )

    def of_class(self, request_class: str) -> tuple[float, float]:
        """Targets of a class of requests: to the first token, and for each after it, seconds."""
        if request_class == BATCH:
            return self.batch_ttft_s, self.batch_tpot_ms / 1000
        return self.ttft_s, self.tpot_ms / 1000
