"""The routers that are compared in simulated time, behind one small interface.

paceline is the router's own `PrefixRouting` with the copies of accounts that verifiers tell.
Ray's is Ray Serve LLM's own class, as it runs on the classic path: its choice, its replica queue
lengths, its notice of where a request went. Only its prefix tree, an actor elsewhere, is called
directly.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from mock_engines import MockEngine
from traces import Arrival

from kvstore.kv_feed import KvFeed
from router.policy import least_loaded
from router.prefix_routing import PrefixRouting
from router.reading import Reading
from router.routing_settings import PrefixSettings

CHARS_OF_TOKEN = 4
"""So that a block of 32 tokens has 128."""


class Policy(Protocol):
    """Says where requests go."""

    def pick(self, arrival: Arrival, now_s: float) -> str:
        """The engine's name."""

    def tell(self, engine: MockEngine, now_s: float) -> None:
        """An engine speaks, where the policy listens."""

    def ended(self, name: str, now_s: float) -> None:
        """A request of this engine is over, where the policy sees that."""


class RoundRobin:
    """In turns."""

    def __init__(self, names: Sequence[str], *_: Any) -> None:
        self._names, self._turn = names, -1

    def pick(self, arrival: Arrival, now_s: float) -> str:
        """As `Policy`."""
        self._turn += 1
        return self._names[self._turn % len(self._names)]

    def tell(self, engine: MockEngine, now_s: float) -> None:
        """As `Policy`."""

    def ended(self, name: str, now_s: float) -> None:
        """As `Policy`."""


class _Feeds:
    """Stands in for the follower: the copies, kept without sockets."""

    def __init__(self, routing: PrefixRouting, names: Sequence[str]) -> None:
        self._feeds = {name: KvFeed(routing.index, name) for name in names}

    def feed(self, name: str) -> KvFeed:
        return self._feeds[name]

    def follow(self, endpoints: Mapping[str, str]) -> None:
        pass

    def tell(self, engine: MockEngine, now_s: float) -> None:
        feed, delta = self._feeds[engine.name], engine.delta(now_s)
        # A copy is doubtful when it heard nothing for long of the real clock.
        if feed.needs_resync:
            feed.take(engine.snapshot(), time.monotonic())
        feed.take(delta, time.monotonic())


class Paceline:
    """`PrefixRouting`, told by engines as by their relays."""

    def __init__(self, names: Sequence[str], block_tokens: int, _: int) -> None:
        self.routing = PrefixRouting(PrefixSettings("", "", block_tokens, 1 << 20))
        self._feeds = _Feeds(self.routing, names)
        self.routing.follower = self._feeds  # type: ignore[assignment]
        self._replicas: dict[str, dict[str, Any]] = {name: {} for name in names}

    def pick(self, arrival: Arrival, now_s: float) -> str:
        """As `Policy`."""
        reading = Reading(arrival.prompt_tokens, arrival.chain)
        return self.routing.decide(reading, self._replicas, now_s).ranking.replica_ids[0]

    def tell(self, engine: MockEngine, now_s: float) -> None:
        """As `Policy`."""
        self._feeds.tell(engine, now_s)

    def ended(self, name: str, now_s: float) -> None:
        """As `Policy`."""


class LeastLoaded(Paceline):
    """The router's other policy, with loads as fresh as those of the first."""

    def pick(self, arrival: Arrival, now_s: float) -> str:
        """As `Policy`."""
        ledger, loads = self.routing.ledger, []
        for name in self._replicas:
            report = self._feeds.feed(name).load
            in_flight, at_s = (report.in_flight, report.at_s) if report else (0, 0.0)
            loads.append(ledger.load(name, in_flight, at_s, now_s))
        best = least_loaded(loads).replica_ids[0]
        ledger.picked(best, now_s)
        return best


class RayAffinity:
    """Ray Serve LLM's `PrefixCacheAffinityRouter`.

    Args:
        imbalanced_threshold: Its setting of this name; None leaves the default, which is never to
            look at the load where a prefix matches.
    """

    def __init__(
        self, names: Sequence[str], _: int, seed: int, imbalanced_threshold: float | None = None
    ) -> None:
        self._now_s = 0.0
        self._loop = asyncio.new_event_loop()
        random.seed(seed)  # It draws from Python's own generator.
        settings = {}
        if imbalanced_threshold is not None:
            settings["imbalanced_threshold"] = imbalanced_threshold
        self._loop.run_until_complete(self._start(names, settings))

    async def _start(self, names: Sequence[str], settings: dict[str, float]) -> None:
        from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree
        from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

        prefix_aware_router.ray = SimpleNamespace(get=lambda value: value)
        deployment = DeploymentID(name="mock")
        self._router = prefix_aware_router.PrefixCacheAffinityRouter(
            deployment_id=deployment,
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
            get_curr_time_s=lambda: self._now_s,
        )
        self._router.initialize_state(tree_actor=_Local(PrefixTree()), **settings)
        self._ids = {name: ReplicaID(name, deployment_id=deployment) for name in names}
        self._router.update_replicas([_RayReplica(replica_id) for replica_id in self._ids.values()])
        await asyncio.sleep(0)

    def pick(self, arrival: Arrival, now_s: float) -> str:
        """As `Policy`."""
        self._now_s = now_s
        return self._loop.run_until_complete(self._pick(text_of(arrival)))

    async def _pick(self, text: str) -> str:
        from ray.serve._private.common import RequestMetadata
        from ray.serve.request_router import PendingRequest

        router = self._router
        request = PendingRequest(
            args=[SimpleNamespace(prompt=text)],
            kwargs={},
            metadata=RequestMetadata(request_id="", internal_request_id=""),
        )
        for group in await router.choose_replicas(list(router._replicas.values()), request):
            chosen = await router._select_from_candidate_replicas(group, 0)
            if chosen is not None:
                router.on_send_request(chosen.replica_id)
                router.on_request_routed(request, chosen.replica_id, None)
                return str(chosen.replica_id.unique_id)
        raise RuntimeError("it chose nobody")

    def tell(self, engine: MockEngine, now_s: float) -> None:
        """As `Policy`."""

    def ended(self, name: str, now_s: float) -> None:
        """As `Policy`."""
        self._now_s = now_s
        self._router.decrement_queue_len_cache(self._ids[name])


class RayBalanced(RayAffinity):
    """The same, told to look at the load where queues differ by more than ten."""

    def __init__(self, names: Sequence[str], block_tokens: int, seed: int) -> None:
        super().__init__(names, block_tokens, seed, imbalanced_threshold=10)


class _Local:
    """An actor's methods, called right here."""

    def __init__(self, it: Any) -> None:
        self._it = it

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._it, name))


class _RayReplica:
    """What the router looks at of a replica."""

    node_id = availability_zone = ""
    multiplexed_model_ids: frozenset[str] = frozenset()
    max_ongoing_requests = 1 << 20

    def __init__(self, replica_id: Any) -> None:
        self.replica_id = replica_id

    async def get_queue_len(self, *, deadline_s: float) -> int:
        """Asked once, when the replica is new."""
        return 0


POLICIES: dict[str, Any] = {
    "paceline": Paceline,
    "least loaded": LeastLoaded,
    "round robin": RoundRobin,
    "Ray affinity": RayAffinity,
    "Ray affinity, balanced": RayBalanced,
}
"""Each takes (names, tokens of a block, seed)."""


def text_of(arrival: Arrival) -> str:
    """A prompt's text: what is one block is one text, and no two blocks begin alike."""
    blocks = "".join(_text(block) for block in arrival.chain)
    rest = arrival.prompt_tokens * CHARS_OF_TOKEN - len(blocks)
    return blocks + _text(hash(arrival))[: max(CHARS_OF_TOKEN, rest)]


def _text(number: int) -> str:
    digest = hashlib.blake2b(number.to_bytes(8, "little", signed=True), digest_size=64)
    return digest.hexdigest()
