"""The statistics of our KV connector on their way through vLLM: LMCache's own, and our totals."""

from functools import partial
from typing import Any, Final

from lmcache.integration.vllm.lmcache_mp_metrics import (
    LMCacheMPConnectorStats,
    LMCacheMPPromMetrics,
)
from prometheus_client import Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric

from replicas.verifier.kv_state import SHARING

BUCKETS_S: Final = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
"""Of LMCache's histogram of look-ups, which has none of its own; Ray's histograms need some."""


class KvStats(LMCacheMPConnectorStats):  # type: ignore[misc]
    """LMCache's statistics, and our totals, of which the newest count."""

    def aggregate(self, other: LMCacheMPConnectorStats) -> LMCacheMPConnectorStats:
        """Both together."""
        super().aggregate(other)
        if SHARING in other.data:
            self.data[SHARING] = other.data[SHARING]
        return self

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return SHARING not in self.data and super().is_empty()


class KvPromMetrics(LMCacheMPPromMetrics):  # type: ignore[misc]
    """LMCache's, with buckets."""

    def __init__(
        self, vllm_config: Any, metric_types: dict[type[PromMetric], Any], *labels: Any
    ) -> None:
        with_buckets = {
            kind: partial(made, buckets=BUCKETS_S) if issubclass(kind, Histogram) else made
            for kind, made in metric_types.items()
        }
        super().__init__(vllm_config, with_buckets, *labels)
