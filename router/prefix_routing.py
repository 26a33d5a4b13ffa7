"""Everything one router knows for `prefix_aware`: gathers, has the policy decide, remembers.

It is made empty, without files or sockets, and starts when the first request comes; until its
tokenizer is loaded, a second or three later, it routes by load. It holds nothing that another
router of the cluster needs, so there may be any number of them.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.request_class import BATCH
from kvstore.hashing import Naming
from kvstore.kv_follower import KvFollower
from kvstore.kv_messages import LoadReport
from kvstore.prefix_index import NOTHING, Match, PrefixIndex
from router.cost import Cost
from router.ledger import PickLedger
from router.policy import affinity, prefix_aware
from router.reading import AFFINITY_BLOCKS, BodyReader, Reading, Unread
from router.routing_settings import PrefixSettings, Ready
from router.types import Candidate, Prefill, Ranking

logger = logging.getLogger(__name__)

MAX_UNREAD = 64
"""Prompts that are kept for the case that another begins as they do."""
UNREPORTED_PICK_S = 5.0
"""How long a pick counts as work where a verifier tells nothing of its load."""


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
        self._reader = BodyReader(settings, self._is_known)
        self._unread: OrderedDict[int, tuple[str, float, Unread]] = OrderedDict()
        """First block -> where a prompt was sent that was not read to its end, and when."""
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
        self.begin(ready)
        logger.info("router prefix_aware=on follows=%s", ready.codec is not None)

    def begin(self, ready: Ready) -> None:
        """From now on requests are tokenized, and verifiers followed; on the loop of `decide`."""
        self._reader.begin(ready)
        if ready.codec is not None:
            naming = Naming(ready.tenants.weights_fingerprint, self._settings.block_tokens)
            self.follower = KvFollower(self.index, naming, ready.codec)

    async def read(self, body: Mapping[str, Any] | None, shown: str, part: float = 1.0) -> Reading:
        """What a request's body says.

        Args:
            body: Parsed; None where it could not be.
            shown: Value of `settings.shown_header`; empty where the request has none.
            part: Part of the body that is there, above 0, at most 1.
        """
        reading = await self._reader.read(body, shown, part)
        if reading.chain and reading.unread is None:
            await self._read_the_one_before(reading.chain[0])
        return reading

    async def _read_the_one_before(self, block: int) -> None:
        """A second prompt begins as one that was not read to its end: how far are they the same?"""
        if (sent := self._unread.pop(block, None)) is None or self.index.holds(block):
            return
        replica_id, at_s, unread = sent
        self.ledger.expect(replica_id, at_s, await self._reader.blocks_of(unread))

    def _is_known(self, block: int) -> bool:
        return self.index.holds(block) or self.ledger.expects(block, time.time())

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
        reach = self._reach(reading.chain, verifiers)
        while True:
            candidates = [
                self._candidate(name, stats, reading, matches[name].reaching(*reach[name]), now_s)
                for name, stats in verifiers.items()
            ]
            ranking, cost = prefix_aware(
                candidates,
                reading.prompt_tokens,
                self._settings.block_tokens,
                self._settings.batch_weight if reading.request_class == BATCH else 1.0,
            )
            if not ranking.replica_ids:
                return Decision(ranking, None, NOTHING, 0)
            best = ranking.replica_ids[0]
            exact = self.index.confirm(best, reading.chain, matches[best])
            if exact == matches[best]:
                break
            matches[best] = exact  # Its run has a hole: decide again.
        self.ledger.picked(best, now_s, cost.prefill_tokens if cost else 0, reading.chain)
        if reading.unread is not None:
            self._unread[reading.chain[0]] = best, now_s, reading.unread
            while len(self._unread) > MAX_UNREAD:
                self._unread.popitem(last=False)
        cold = sum(name not in self.index for name in verifiers)
        return Decision(ranking, cost, matches[best].reaching(*reach[best]), cold)

    def _matches(self, chain: Sequence[int], verifiers: Mapping[str, object]) -> dict[str, Match]:
        now_s = time.monotonic()
        matches = {}
        for name in verifiers:
            feed = self.follower.feed(name) if self.follower is not None else None
            is_known = feed is not None and not feed.is_doubtful(now_s)
            matches[name] = self.index.match(name, chain) if is_known else NOTHING
        return matches

    def _reach(
        self, chain: Sequence[int], verifiers: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, tuple[int, int]]:
        """By verifier how much of a prompt lies in its node's memory, and in what all share.

        Whoever put it there: the ones that can fetch say so in their load.
        """
        shared = {name: self.index.shared_runs(name, chain) for name in verifiers}
        nodes = {name: _node(stats) for name, stats in verifiers.items()}
        storage_run = max((storage for _, storage in shared.values()), default=0)
        host_runs: dict[str, int] = {}
        for name, (host, _) in shared.items():
            host_runs[nodes[name]] = max(host_runs.get(nodes[name], 0), host)
        return {
            name: (host_runs[nodes[name]], storage_run) if self._fetches(name) else (0, 0)
            for name in verifiers
        }

    def _fetches(self, name: str) -> bool:
        report = self._report(name)
        return report is not None and report.fetch is not None

    def _candidate(
        self,
        name: str,
        stats: Mapping[str, Any],
        reading: Reading,
        match: Match,
        now_s: float,
    ) -> Candidate:
        report = self._report(name)
        # A plain replica never reports; its picks count for a few seconds.
        polled_at_s = float(stats.get("at_s", now_s - UNREPORTED_PICK_S))
        if report is not None and report.at_s >= polled_at_s:
            # What can wait is behind those who can't.
            behind = 0 if reading.request_class == BATCH else report.queued_batch_tokens
            load = self.ledger.load(
                name,
                report.in_flight,
                report.at_s,
                now_s,
                queued_tokens=max(0, report.queued_tokens - behind),
                waiting=report.waiting,
            )
        else:
            load = self.ledger.load(name, int(stats.get("in_flight", 0)), polled_at_s, now_s)
        prefill = None
        if report is not None and report.prefill_s_per_token > 0:
            prefill = Prefill(report.prefill_base_s, report.prefill_s_per_token)
        chain = reading.chain
        if chain:
            preferred = affinity(name, chain[min(AFFINITY_BLOCKS, len(chain)) - 1])
        elif reading.session:  # Its tokens are not known, but where its like went is.
            preferred = affinity(name, session_key(reading.session))
        else:
            preferred = 1 / (1 + load.last_pick)  # Nothing to be near to: take turns.
        fetch = report.fetch if report is not None else None
        return Candidate(
            load,
            match.device_blocks,
            match.colder_blocks,
            match.storage_blocks,
            self.ledger.coming_blocks(name, chain, now_s),
            prefill,
            # Zeros are sent by one that could fetch and never has.
            fetch if fetch is not None and fetch.host_s_per_token else None,
            preferred,
        )

    def _report(self, name: str) -> LoadReport | None:
        feed = self.follower.feed(name) if self.follower is not None else None
        return feed.load if feed is not None else None


def _node(stats: Mapping[str, Any]) -> str:
    """Where a verifier runs: the host of the address where it tells of its blocks."""
    return str(stats.get("kv_endpoint", "")).rpartition(":")[0]


def session_key(session: str) -> int:
    """A session's name as a number, the same in every router."""
    digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
