"""What a prefix-aware router shows of itself; the list with units is docs/metrics.md."""

import asyncio
import logging

from ray.serve.metrics import Counter, Gauge

from kvstore.total_counter import TotalCounter
from router.prefix_routing import Decision, PrefixRouting
from router.reading import Reading

logger = logging.getLogger(__name__)

PERIOD_S = 1.0


class PrefixMetrics:
    """The instruments of one router.

    Args:
        routing: Looked at once a second.
    """

    def __init__(self, routing: PrefixRouting) -> None:
        self._routing = routing
        self._task: asyncio.Task[None] | None = None
        self._found: dict[str, int] = {}
        self._prompt_tokens = Counter(
            "paceline_router_prompt_tokens_total", description="Prompt tokens of routed requests."
        )
        self._matched_tokens = Counter(
            "paceline_router_matched_tokens_total",
            description="Of those, tokens that the chosen verifier was known to hold.",
        )
        self._found_tokens = Counter(
            "paceline_router_found_tokens_total",
            description="Prompt tokens that engines found cached, as verifiers report them.",
        )
        self._untokenized = Counter(
            "paceline_router_untokenized_total",
            description="Requests that were routed without their tokens.",
            tag_keys=("reason",),
        )
        self._index_blocks = Gauge(
            "paceline_router_index_blocks", description="Entries of the index of KV blocks."
        )
        self._index_bytes = Gauge(
            "paceline_router_index_bytes", description="Memory of the index of KV blocks."
        )
        self._left_out = TotalCounter(
            "paceline_router_index_left_out_total",
            "Blocks that found no room in the index.",
        )
        self._cold = Gauge(
            "paceline_router_cold_verifiers",
            description="Verifiers of whose blocks nothing is known.",
        )
        self._gaps = TotalCounter(
            "paceline_router_kv_gaps_total",
            "Copies of a verifier's account that were found behind or doubtful.",
        )
        self._repairs = TotalCounter(
            "paceline_router_kv_repairs_total",
            "Copies that a snapshot made right again.",
        )
        self._malformed = TotalCounter(
            "paceline_router_kv_malformed_total",
            "Messages about KV blocks that were dropped.",
            "what",
        )

    def start(self) -> None:
        """Begins to look, on the running loop, for as long as it runs."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="router-metrics")

    async def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def saw(self, reading: Reading, decision: Decision) -> None:
        """Counts one decision."""
        if reading.reason:
            self._untokenized.inc(tags={"reason": reading.reason})
        if reading.prompt_tokens:
            self._prompt_tokens.inc(reading.prompt_tokens)
        if decision.match.blocks:
            self._matched_tokens.inc(decision.match.blocks * self._routing.block_tokens)
        self._cold.set(decision.cold)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self._look()
            except Exception:  # counting must never cost a route
                logger.exception("router metrics=stumbled")

    def _look(self) -> None:
        index, follower = self._routing.index, self._routing.follower
        self._index_blocks.set(len(index))
        self._index_bytes.set(index.nbytes)
        self._left_out.reach(index.left_out)
        if follower is None:
            return
        stats = follower.stats
        self._gaps.reach(stats.gaps)
        self._repairs.reach(stats.repairs)
        for what, count in stats.malformed.items():
            self._malformed.reach(count, what)
        found = follower.cached_tokens()
        # What an engine had found before it was followed is left out.
        more = sum(max(0, total - self._found.get(name, total)) for name, total in found.items())
        if more:
            self._found_tokens.inc(more)
        self._found = found
