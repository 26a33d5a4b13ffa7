"""Once a second: the live draft workers go to the rank that proposes, its counts come back.

The rank itself talks to no Redis: this process already does, and an engine step must not
wait for a registry.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from kvstore.errors import StoreError
from kvstore.registry import Registry
from replicas.verifier.drafting_state import DraftingState
from replicas.verifier.placement import Place, distance

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
RPC_TIMEOUT_S = 30.0
"""A long prefill may stand in the way of an answer."""


class Ranks(Protocol):
    """Calls a method of the worker extension on every rank."""

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]: ...


class DraftingLink:
    """Keeps the rank that proposes up to date, until it is closed.

    Args:
        ranks: The engine.
        registry: Where draft workers announce themselves; stays the caller's to close.
        saw: Told the state of drafting, once a second.
        pressure: How much of drafting is to be given up now, 0-5.
        place: Where this verifier runs; it asks the nearest draft workers.
    """

    def __init__(
        self,
        ranks: Ranks,
        registry: Registry,
        saw: Callable[[DraftingState], None],
        pressure: Callable[[], int] = lambda: 0,
        place: Place | None = None,
    ) -> None:
        self._ranks, self._registry, self._saw = ranks, registry, saw
        self._pressure = pressure
        self._place = place
        self._task: asyncio.Task[None] | None = None
        self._workers: list[dict[str, Any]] = []
        self._is_lost = False

    async def start(self, config: dict[str, Any], tokenizer_fingerprint: str) -> None:
        """Connects the rank that proposes; from then on it drafts.

        Args:
            config: The cluster's config, as JSON types.
            tokenizer_fingerprint: The target's.
        """
        await self._ranks.collective_rpc("drafting_connect", args=(config, tokenizer_fingerprint))
        self._task = asyncio.create_task(self._run(), name="drafting-link")

    async def close(self) -> None:
        """Stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._look_for_workers()
            try:
                async with asyncio.timeout(RPC_TIMEOUT_S):
                    states = await self._ranks.collective_rpc(
                        "drafting_tick", args=(self._workers, self._pressure())
                    )
                for state in states:
                    if state is not None:
                        self._saw(msgspec.convert(state, DraftingState))
            except Exception:  # the engine's death is seen by the health check, not here
                logger.exception("drafting link=lost")
            await asyncio.sleep(PERIOD_S)

    async def _look_for_workers(self) -> None:
        """Keeps the last list while Redis is lost: its workers may well be there."""
        try:
            listing = await self._registry.live("draft")
        except StoreError as error:
            if not self._is_lost:
                logger.warning("drafting registry=lost error=%s", error)
            self._is_lost = True
            return
        if self._is_lost:
            logger.info("drafting registry=back")
        self._is_lost = False
        self._workers = [
            {
                "worker_id": report.worker_id,
                "endpoint": report.endpoint,
                "protocols": report.protocols,
                "tokenizer_fingerprint": report.tokenizer_fingerprint,
                "kinds": report.kinds,
                "distance": distance(self._place, Place(report.node_ip, report.zone))
                if self._place is not None
                else 0,
                "load": {
                    "sessions": report.sessions,
                    "places": report.model.places if report.model is not None else 1,
                },
            }
            for report in listing.reports
        ]
