"""How fast the tiers behind the node's LMCache server are, as they say themselves.

The server shows it on its loopback HTTP port (`kvstore/tier_account.py` is what it shows). A
thread looks once a second while somebody wants to know; nobody waits for it.
"""

import http.client
import json
import logging
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kvstore.kv_reports import TierReport
from replicas.verifier.fading_line import Line

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
IDLE_AFTER_S: Final = 30.0
TIMEOUT_S: Final = 2.0
MAX_STATUS_BYTES: Final = 4 << 20
TYPE_PREFIX: Final = "paceline-"


class TierWatch:
    """Looks at one LMCache server.

    Args:
        status_url: Its `/status`.
    """

    def __init__(self, status_url: str) -> None:
        self._url = status_url
        self._tiers: tuple[TierReport, ...] = ()
        self._wanted_at_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def tiers(self) -> tuple[TierReport, ...]:
        """As they were when they were last looked at."""
        self._wanted_at_s = time.monotonic()
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="kv-tiers", daemon=True)
            self._thread.start()
        return self._tiers

    def lines(self, bytes_per_token: float) -> dict[str, Line]:
        """By kind what bringing tokens costs, for tiers that answer and have been measured."""
        return {
            tier.kind: Line(tier.lookup_s, bytes_per_token / tier.bytes_per_s)
            for tier in self.tiers
            if tier.is_healthy and tier.bytes_per_s > 0
        }

    @property
    def is_any_away(self) -> bool:
        """Whether one of them is left alone because it failed."""
        return any(not tier.is_healthy for tier in self.tiers)

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_S):
            if time.monotonic() - self._wanted_at_s < IDLE_AFTER_S:
                self._tiers = read_tiers(self._url)


def read_tiers(status_url: str) -> tuple[TierReport, ...]:
    """The tiers behind an LMCache server; empty where it does not answer."""
    try:
        with urllib.request.urlopen(status_url, timeout=TIMEOUT_S) as answer:  # noqa: S310
            status = json.loads(answer.read(MAX_STATUS_BYTES))
        return tuple(
            msgspec.convert(found, TierReport, strict=False) for found in _adapters(status)
        )
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        logger.debug("kv status=unknown error=%s", error)
        return ()


def _adapters(part: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, dict):
        if str(part.get("type", "")).startswith(TYPE_PREFIX):
            yield part
        else:
            for value in part.values():
                yield from _adapters(value)
    elif isinstance(part, list):
        for value in part:
            yield from _adapters(value)
