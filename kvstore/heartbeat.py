"""Keeps one worker's report in the registry."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from kvstore.errors import StoreError, StoreUnavailable
from kvstore.registry import Registry, Report, kind_of

logger = logging.getLogger(__name__)

MAX_BACKOFF_S: Final = 5.0


class Heartbeat:
    """Announces a worker again and again, until it is closed; then withdraws it.

    The owner never gets an error from it. While Redis is lost it logs once, keeps
    trying at growing intervals, and counts.

    Args:
        registry: Where to announce; stays the caller's to close.
        make_report: Called for each beat, on the event loop.
        period_s: From one beat to the next; well below the registry's `ttl_s`.

    Attributes:
        beats: Reports that Redis took.
        misses: Reports that it did not take.
    """

    def __init__(
        self, registry: Registry, make_report: Callable[[], Report], period_s: float
    ) -> None:
        self.beats = 0
        self.misses = 0
        self._registry = registry
        self._make_report = make_report
        self._period_s = period_s
        self._last: Report | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to beat; the first beat follows at once."""
        self._task = asyncio.create_task(self._run(), name="registry-heartbeat")

    async def close(self) -> None:
        """Stop, and withdraw the worker if Redis can be reached."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        if self._last is not None:
            with suppress(StoreUnavailable):
                await self._registry.withdraw(kind_of(self._last), self._last.worker_id)

    async def _run(self) -> None:
        missed = 0  # In a row.
        while True:
            try:
                report = self._make_report()
                await self._registry.announce(report)
            except Exception as error:
                self.misses += 1
                missed += 1
                if missed == 1:
                    known = isinstance(error, StoreError)
                    logger.warning("registry heartbeat=lost error=%s", error, exc_info=not known)
            else:
                self._last = report
                self.beats += 1
                if missed:
                    logger.info("registry heartbeat=back missed=%d", missed)
                missed = 0
            await asyncio.sleep(min(self._period_s * 2 ** min(missed, 8), MAX_BACKOFF_S))
