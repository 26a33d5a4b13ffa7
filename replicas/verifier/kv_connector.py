"""Our seam into vLLM's KV connector: LMCache's own, asked only where it pays.

vLLM builds one in the scheduler and one in each rank. What moves blocks is LMCache's; what is
added is in the scheduler: `replicas/verifier/fetch_gate.py` decides whether a prompt is looked up,
how long its request waits for the answer and whether what is found is fetched. What it decides by
is measured here (steps, loads) and by the tiers themselves (`replicas/verifier/tier_watch.py`).
"""

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lmcache.integration.vllm.lmcache_mp_connector import (
    LMCacheMPConnector,
    LMCacheMPRequestState,
)
from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

from kvstore.llvmlite_mend import mend
from replicas.verifier.fading_line import FadingLine
from replicas.verifier.fetch_gate import GateSettings, LookUp, Rates, fetches, look_up
from replicas.verifier.kv_state import SHARING, KvState
from replicas.verifier.kv_stats import KvPromMetrics, KvStats
from replicas.verifier.shared_blocks import MEMORY, STORAGE, BlockNews
from replicas.verifier.tier_watch import TierWatch

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

mend()

logger = logging.getLogger(__name__)

LOST: Final = (TimeoutError, ConnectionError, RuntimeError, OSError)
"""What LMCache's client raises in a rank where the server does not answer; it would end the
engine."""
SETTINGS: Final = "paceline"
"""Key of our own settings in `kv_connector_extra_config`."""
TELL_PERIOD_S: Final = 1.0
MAX_STEPS_UNDER_WAY: Final = 16
GLANCE_S: Final = 0.004
"""How long the scheduler stands still for an answer, when it asks and before it gives up: it takes
two messages to LMCache and back, and a step after each of them would cost far more."""
GLANCE_PERIOD_S: Final = 0.0003


@dataclass
class _Asked:
    """What was decided for one request."""

    request: "Request"
    tracker: Any
    look_up: LookUp
    began_s: float
    was_asked: bool = False
    gave_up: bool = False
    fetches: bool | None = None
    loads_tokens: int = 0
    load_began_s: float = 0.0


class SharedKvConnector(LMCacheMPConnector):  # type: ignore[misc]
    """LMCache's connector behind a gate.

    Args:
        vllm_config: vLLM's; its `kv_connector_extra_config` holds our settings, too.
        role: Scheduler or rank.
        kv_cache_config: vLLM's.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig | None" = None,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role != KVConnectorRole.SCHEDULER:
            return
        settings = vllm_config.kv_transfer_config.kv_connector_extra_config[SETTINGS]
        self._gate = GateSettings(
            always=settings["always"],
            shortest_tokens=settings["shortest_tokens"],
            wait_max_s=settings["wait_max_s"],
        )
        self._compute, self._load = FadingLine(), FadingLine()
        self._tiers = TierWatch(settings["status_url"])
        self._state = KvState()
        self._asked: dict[str, _Asked] = {}
        self._bytes_per_token = _bytes_per_token(vllm_config, kv_cache_config)
        block_tokens = vllm_config.cache_config.block_size
        block_bytes = block_tokens * self._bytes_per_token or 1.0
        sizes = {MEMORY: settings["host_bytes"], STORAGE: settings["storage_bytes"]}
        self._news = BlockNews(
            {
                medium: int(size / block_bytes)
                for medium, size in sizes.items()
                if size and self._enable_kv_events
            },
            block_tokens,
        )
        self._was_healthy = True
        self._steps: deque[tuple[int, float]] = deque(maxlen=MAX_STEPS_UNDER_WAY)
        self._last_end_s = 0.0
        self._told_at_s = 0.0

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """As vLLM says, in a rank. What LMCache does not bring in time is computed."""
        try:
            super().start_load_kv(forward_context, **kwargs)
        except LOST as error:
            adapter = self._lost(error)
            for asked in self._get_connector_metadata().requests:
                if (
                    asked.direction == "RETRIEVE"
                    and asked.request_id not in adapter.retrieve_futures
                ):
                    adapter.error_block_ids.update(asked.op.flat_block_ids)
                    adapter._failed_request_ids.add(asked.request_id)
                    adapter._dropped_retrieves.add(asked.request_id)

    def wait_for_save(self) -> None:
        """As vLLM says, in a rank. What LMCache does not take in time is not shared."""
        try:
            super().wait_for_save()
        except LOST as error:
            self._lost(error)

    def _lost(self, error: Exception) -> Any:
        """LMCache does not answer: it is not asked again before its heartbeat is back."""
        logger.warning("kv server=lost error=%s", error)
        adapter = self.worker_adapter
        adapter._health_event.clear()
        return adapter

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """As vLLM says; called again and again while the answer is (None, True)."""
        tracker = self._get_or_create_request_tracker(request)
        if tracker.state == LMCacheMPRequestState.BYPASS_LMCACHE:
            return 0, False
        asked = self._asked.get(request.request_id)
        if asked is None or asked.tracker is not tracker:
            asked = self._ask(request, tracker, num_computed_tokens)
        if not asked.look_up.wanted or asked.gave_up:
            self._skips(tracker, num_computed_tokens)
            return 0, False
        is_late = time.monotonic() - asked.began_s >= asked.look_up.wait_s
        glance_s = GLANCE_S if is_late or not asked.was_asked else 0.0
        asked.was_asked = True
        tokens, is_async = self._found(request, num_computed_tokens, glance_s)
        if tokens is None:
            if not is_late:
                return None, True
            asked.gave_up = True
            self._state.outcome("gave_up")
            self.scheduler_adapter.cleanup_lookup_result(request.request_id)
            tracker.lookup_started_at = None
            self._skips(tracker, num_computed_tokens)
            return 0, False
        if tracker.state == LMCacheMPRequestState.BYPASS_LMCACHE:  # A load has failed.
            return 0, False
        if asked.fetches is None:
            asked.fetches = self._decides(tokens)
        return (tokens, is_async) if asked.fetches else (0, False)

    def _found(self, request: "Request", computed: int, glance_s: float) -> tuple[int | None, bool]:
        """LMCache's answer if it comes so soon."""
        until_s = time.monotonic() + glance_s
        while True:
            found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, computed)
            if found[0] is not None or time.monotonic() >= until_s:
                return found
            time.sleep(GLANCE_PERIOD_S)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """As vLLM says: the request has its blocks, and what is loaded is on its way."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        asked = self._asked.get(request.request_id)
        if asked is None:
            return
        if asked.tracker.state == LMCacheMPRequestState.WAITING_FOR_LOAD:
            asked.loads_tokens, asked.load_began_s = num_external_tokens, time.monotonic()
        elif not asked.fetches:
            # What was found is computed all the same. As long as it counts as a hit, LMCache
            # takes it for computed, and stores what is not there yet.
            asked.tracker.num_lmcache_hit_tokens = 0

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """As vLLM says: a step begins."""
        self._steps.append((scheduler_output.total_num_scheduled_tokens, time.monotonic()))
        metadata = super().build_connector_meta(scheduler_output)
        is_healthy = self.scheduler_adapter.is_healthy
        if not is_healthy and self._was_healthy:
            self._news.memory_is_lost()
        self._was_healthy = is_healthy
        if is_healthy:
            for moved in metadata.requests:
                if (asked := self._asked.get(moved.request_id)) is not None:
                    self._news.moved(asked.request, moved.op.start, moved.op.end)
        return metadata

    def take_events(self) -> Iterable[KVCacheEvent]:
        """As vLLM says. LMCache's own events name nobody's blocks, and are left out."""
        super().take_events()
        return self._news.take()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """As vLLM says: the ranks have ended loads."""
        super().update_connector_output(connector_output)
        now_s = time.monotonic()
        for request_id in connector_output.finished_recving or ():
            asked = self._asked.get(request_id)
            if asked is None or not asked.loads_tokens:
                continue
            tokens, seconds = asked.loads_tokens, now_s - asked.load_began_s
            asked.loads_tokens = 0
            if connector_output.invalid_block_ids:
                self._state.outcome("failed")
            else:
                self._load.note(tokens, seconds)
                self._state.loaded(tokens, seconds)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM says."""
        self._asked.pop(request.request_id, None)
        return super().request_finished(request, block_ids)  # type: ignore[no-any-return]

    def get_kv_connector_stats(self) -> KvStats | None:
        """As vLLM says, which asks at the end of each step; with our totals once a second."""
        stats: KvStats | None = super().get_kv_connector_stats()
        if self.role != KVConnectorRole.SCHEDULER:
            return stats
        now_s = time.monotonic()
        self._step_ended(now_s)
        if now_s - self._told_at_s < TELL_PERIOD_S:
            return stats
        self._told_at_s = now_s
        told = KvStats(data=dict(stats.data) if stats is not None else {})
        told.data[SHARING] = self.sharing()
        return told

    def sharing(self) -> dict[str, Any]:
        """A `SharingReport` of the scheduler's, as plain data."""
        tiers = self._tiers.lines(self._bytes_per_token)
        return self._state.told(self._rates(), tiers, self.scheduler_adapter.is_healthy)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvStats | None:
        """As vLLM says."""
        return KvStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> KvPromMetrics:
        """As vLLM says."""
        return KvPromMetrics(*args)

    def shutdown(self) -> None:
        """As vLLM says."""
        if self.role == KVConnectorRole.SCHEDULER:
            self._tiers.close()
        super().shutdown()

    def _step_ended(self, now_s: float) -> None:
        if self._steps:
            tokens, began_s = self._steps.popleft()
            # Steps may be begun before the ones before them have ended.
            if tokens >= self._gate.shortest_tokens:
                self._compute.note(tokens, now_s - max(began_s, self._last_end_s))
        self._last_end_s = now_s

    def _ask(self, request: "Request", tracker: Any, computed: int) -> _Asked:
        tokens = len(request.all_token_ids) - computed
        decided = look_up(self._gate, tokens, self._rates(), self._state.asked)
        asked = _Asked(request, tracker, decided, time.monotonic())
        self._asked[request.request_id] = asked
        self._state.decided(decided)
        return asked

    def _decides(self, tokens: int) -> bool:
        if not tokens:
            self._state.outcome("missed")
            return False
        fetched = fetches(self._gate, tokens, self._rates(), self._state.asked)
        self._state.outcome("fetched" if fetched else "computed")
        return fetched

    def _skips(self, tracker: Any, computed: int) -> None:
        """What the engine holds was stored when it was computed; it is not stored again."""
        chunk, aligned = self.scheduler_adapter.lmcache_tokens_per_chunk, self._hit_alignment_tokens
        tracker.num_vllm_hit_tokens = computed // aligned * aligned
        tracker.num_stored_tokens = max(tracker.num_stored_tokens, computed // chunk * chunk)

    def _rates(self) -> Rates:
        tiers = self._tiers.lines(self._bytes_per_token)
        return Rates(
            self._compute.line(), self._load.line(), tuple(tiers.values()), self._tiers.is_any_away
        )


def _bytes_per_token(vllm_config: VllmConfig, kv_cache_config: "KVCacheConfig | None") -> float:
    """Of all ranks together."""
    groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else ()
    rank_bytes = sum(
        len(group.layer_names)
        * group.kv_cache_spec.page_size_bytes
        / group.kv_cache_spec.block_size
        for group in groups
    )
    return float(rank_bytes * vllm_config.parallel_config.world_size)
