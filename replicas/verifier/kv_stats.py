"""The statistics of our KV connector on their way through vLLM: LMCache's own, and our totals."""

from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPConnectorStats

from replicas.verifier.kv_state import SHARING


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
