"""Everything one router knows for `prefix_aware`: gathers, has the policy decide, remembers.

It is made empty, without files or sockets, and starts when the first request comes; until its
tokenizer is loaded, a second or three later, it routes by load. It holds nothing that another
router of the cluster needs, so there may be any number of them.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.hashing import block_hashes
from kvstore.held_blocks import Naming
from kvstore.kv_follower import KvFollower
from kvstore.kv_messages import LoadReport
from kvstore.prefix_index import NOTHING, Match, PrefixIndex
from router.cost import Cost
from router.errors import NotTokenized
from router.ledger import PickLedger
from router.policy import affinity, prefix_aware
from router.prompt import PromptReader
from router.routing_settings import PrefixSettings, Ready
from router.tenants import Tenants
from router.types import Candidate, Prefill, Ranking

logger = logging.getLogger(__name__)

LONG_PROMPT_CHARS = 32_768
"""Longer ones are tokenized in a thread: they would hold up the loop for ten milliseconds."""
UNREPORTED_PICK_S = 5.0
"""How long a pick counts as work where a verifier tells nothing of its load."""
AFFINITY_BLOCKS = 4
"""Of a prompt's beginning, which decides where a prompt goes that is warm nowhere."""


@dataclass(frozen=True)
class Reading:
    """What a request's body says to a router.

    Attributes:
        prompt_tokens: Of the prompt; 0 where it can't be known.
        chain: Hashes of its blocks.
        reason: Why there are none, a word; empty where there may be.
    """

    prompt_tokens: int = 0
    chain: Sequence[int] = ()
    reason: str = ""


@dataclass(frozen=True)
class Decision:
    """Where a request goes.

    Attributes:
        ranking: Verifiers, best first, and why.
        cost: Predicted on the first of them.
        match: What the first of them holds of the prompt.
        cold: Verifiers of whose blocks nothing is known.
    """

    ranking: Ranking
    cost: Cost | None
    match: Match
    cold: int


class PrefixRouting:
    """One router's knowledge, and its decisions. Use it on one event loop.

    Args:
        settings: What it goes by.
    """

    def __init__(self, settings: PrefixSettings) -> None:
        self.index = PrefixIndex(settings.max_blocks)
        self.follower: KvFollower | None = None
        self.ledger = PickLedger()
        self._settings = settings
        self._reader: PromptReader | None = None
        self._tenants: Tenants | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self._settings.block_tokens

    def start(self) -> None:
        """Begins to load and to follow; returns at once, and does nothing the second time."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(), name="router-load")

    async def started(self) -> None:
        """Returns when loading is over, whether it went well or not."""
        self.start()
        assert self._loading is not None
        await self._loading

    async def close(self) -> None:
        """Stops following."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        if self.follower is not None:
            await self.follower.close()

    async def _load(self) -> None:
        try:
            ready: Ready = await asyncio.to_thread(self._settings.load)
        except Exception:  # of the tokenizer's loading anything may come; requests are routed on
            logger.exception("router prefix_aware=off, requests are routed by load")
            return
        self._tenants, self._reader = Tenants(ready.tenants), ready.reader
        if ready.codec is not None:
            naming = Naming(ready.tenants.weights_fingerprint, self._settings.block_tokens)
            self.follower = KvFollower(self.index, naming, ready.codec)
        logger.info("router prefix_aware=on follows=%s", ready.codec is not None)

    async def read(self, body: Mapping[str, Any] | None, authorization: str) -> Reading:
        """What a request's body says.

        Args:
            body: Parsed; None where it could not be.
            authorization: The header of this name; empty where there is none.
        """
        reader, tenants = self._reader, self._tenants
        if body is None:
            return Reading(reason="no_body")
        if reader is None or tenants is None:
            return Reading(reason="not_ready")
        try:
            if _chars(body) > LONG_PROMPT_CHARS:
                tokens = await asyncio.to_thread(reader.token_ids, body)
            else:
                tokens = reader.token_ids(body)
        except NotTokenized as error:
            return Reading(reason=error.reason)
        root = tenants.root_of(body.get("model"), authorization)
        if root is None:
            return Reading(len(tokens), (), "unknown_caller")
        return Reading(len(tokens), block_hashes(root, tokens, self._settings.block_tokens))

    def decide(
        self, reading: Reading, verifiers: Mapping[str, Mapping[str, Any]], now_s: float
    ) -> Decision:
        """Where a request goes; remembers that it goes there.

        Args:
            reading: From `read`.
            verifiers: Routing stats of each live verifier, by Serve's id of the replica.
            now_s: Wall clock, seconds.
        """
        self.ledger.keep_only(verifiers)
        if self.follower is not None:
            self.follower.follow(
                {
                    name: end
                    for name, stats in verifiers.items()
                    if (end := stats.get("kv_endpoint"))
                }
            )
        matches = self._matches(reading.chain, verifiers)
        while True:
            candidates = [
                self._candidate(name, stats, reading.chain, matches[name], now_s)
                for name, stats in verifiers.items()
            ]
            ranking, cost = prefix_aware(
                candidates, reading.prompt_tokens, self._settings.block_tokens
            )
            if not ranking.replica_ids:
                return Decision(ranking, None, NOTHING, 0)
            best = ranking.replica_ids[0]
            exact = self.index.confirm(best, reading.chain, matches[best])
            if exact == matches[best]:
                break
            matches[best] = exact  # Its run has a hole: decide again.
        self.ledger.picked(best, now_s, cost.prefill_tokens if cost else 0, reading.chain)
        cold = sum(name not in self.index for name in verifiers)
        return Decision(ranking, cost, matches[best], cold)

    def _matches(self, chain: Sequence[int], verifiers: Mapping[str, object]) -> dict[str, Match]:
        now_s = time.monotonic()
        matches = {}
        for name in verifiers:
            feed = self.follower.feed(name) if self.follower is not None else None
            is_known = feed is not None and not feed.is_doubtful(now_s)
            matches[name] = self.index.match(name, chain) if is_known else NOTHING
        return matches

    def _candidate(
        self,
        name: str,
        stats: Mapping[str, Any],
        chain: Sequence[int],
        match: Match,
        now_s: float,
    ) -> Candidate:
        report = self._report(name)
        # A plain replica never reports; its picks count for a few seconds.
        polled_at_s = float(stats.get("at_s", now_s - UNREPORTED_PICK_S))
        if report is not None and report.at_s >= polled_at_s:
            load = self.ledger.load(
                name, report.in_flight, report.at_s, now_s, queued_tokens=report.queued_tokens
            )
        else:
            load = self.ledger.load(name, int(stats.get("in_flight", 0)), polled_at_s, now_s)
        prefill = None
        if report is not None and report.prefill_s_per_token > 0:
            prefill = Prefill(report.prefill_base_s, report.prefill_s_per_token)
        if chain:
            preferred = affinity(name, chain[min(AFFINITY_BLOCKS, len(chain)) - 1])
        else:
            preferred = 1 / (1 + load.last_pick)  # Nothing to be near to: take turns.
        return Candidate(
            load,
            match.device_blocks,
            match.colder_blocks,
            self.ledger.coming_blocks(name, chain, now_s),
            prefill,
            preferred,
        )

    def _report(self, name: str) -> LoadReport | None:
        feed = self.follower.feed(name) if self.follower is not None else None
        return feed.load if feed is not None else None


def _chars(body: Mapping[str, Any]) -> int:
    """About how long a prompt is; enough to tell a long one."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return len(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(len(str(m.get("content", ""))) for m in messages if isinstance(m, dict))
