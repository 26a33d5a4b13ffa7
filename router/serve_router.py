"""The thin adapter between Ray Serve's request router and our routing policy.

Serve builds one of these in the router deployment and in proxy processes, so it
opens nothing when it is made.
"""

import time
from collections.abc import Sequence
from typing import Any

from ray.serve.metrics import Counter, Histogram
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from router.ledger import PickLedger
from router.policy import least_loaded
from router.prefix_metrics import PrefixMetrics
from router.prefix_routing import PrefixRouting
from router.routing_settings import PrefixSettings
from router.types import Ranking, RoutingNote

DECISION_BUCKETS_S = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05]


class _PickMetrics:
    """What every policy counts."""

    def __init__(self) -> None:
        self.picks = Counter(
            "paceline_router_picks_total",
            description="Requests sent to each verifier.",
            tag_keys=("verifier",),
        )
        self.decision_s = Histogram(
            "paceline_router_decision_seconds",
            description="Time to rank the verifiers.",
            boundaries=DECISION_BUCKETS_S,
        )


class LeastLoadedRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the verifier with the fewest requests in flight."""

    def initialize_state(self, **_: Any) -> None:
        """Called by Serve once, before the first request."""
        self._ledger = PickLedger()
        self._metrics = _PickMetrics()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> Sequence[list[RunningReplica]]:
        """The candidates, best first, each a group of its own.

        Args:
            candidate_replicas: Replicas that Serve holds for alive.
            pending_request: The request; not looked at by this policy.
        """
        started_s, now_s = time.perf_counter(), time.time()
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        self._ledger.keep_only(by_id)
        ranking = least_loaded(
            [
                self._ledger.load(
                    replica_id,
                    in_flight=int(replica.routing_stats.get("in_flight", 0)),
                    reported_at_s=float(replica.routing_stats.get("at_s", 0.0)),
                    now_s=now_s,
                )
                for replica_id, replica in by_id.items()
            ]
        )
        if ranking.replica_ids:
            best = ranking.replica_ids[0]
            self._ledger.picked(best, now_s)
            self._metrics.picks.inc(tags={"verifier": best})
        self._metrics.decision_s.observe(time.perf_counter() - started_s)
        _explain(pending_request, ranking)
        return [[by_id[replica_id]] for replica_id in ranking.replica_ids]


class PrefixAwareRouter(RequestRouter):  # type: ignore[misc]
    """Sends a request to the verifier that is predicted to answer soonest (docs/routing.md).

    Each place is for the request it was chosen for, so there is no `FIFOMixin`.
    """

    def initialize_state(self, **settings: Any) -> None:
        """Called by Serve once, before the first request.

        Args:
            settings: As `PrefixSettings.from_kwargs` takes them.
        """
        self._routing = PrefixRouting(PrefixSettings.from_kwargs(**settings))
        self._metrics = _PickMetrics()
        self._prefix_metrics: PrefixMetrics | None = None

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> Sequence[list[RunningReplica]]:
        """The candidates, best first, each a group of its own.

        Args:
            candidate_replicas: Replicas that Serve holds for alive.
            pending_request: The request, with its body and its bearer key.
        """
        self._routing.start()
        if self._prefix_metrics is None:
            self._prefix_metrics = PrefixMetrics(self._routing)
            self._prefix_metrics.start()
        body, note, shown = _body_of(pending_request), _note_of(pending_request), ""
        if pending_request is not None:
            shown = pending_request.metadata.session_id or ""
        reading = await self._routing.read(body, shown, note.part)
        started_s = time.perf_counter()
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        decision = self._routing.decide(
            reading, {name: replica.routing_stats for name, replica in by_id.items()}, time.time()
        )
        if decision.ranking.replica_ids:
            self._metrics.picks.inc(tags={"verifier": decision.ranking.replica_ids[0]})
        self._metrics.decision_s.observe(time.perf_counter() - started_s)
        self._prefix_metrics.saw(reading, decision)
        _explain(pending_request, decision.ranking)
        return [[by_id[replica_id]] for replica_id in decision.ranking.replica_ids]


def _body_of(pending: PendingRequest | None) -> dict[str, Any] | None:
    """The client's request as fields; None where it could not be read."""
    arguments = pending.args if pending is not None else ()
    return vars(arguments[0]) if arguments and hasattr(arguments[0], "__dict__") else None


def _note_of(pending: PendingRequest | None) -> RoutingNote:
    """The note that goes with a request; an empty one where none does."""
    arguments = pending.args if pending is not None else ()
    return next((a for a in arguments if isinstance(a, RoutingNote)), RoutingNote())


def _explain(pending: PendingRequest | None, ranking: Ranking) -> None:
    """Writes on the request's note why it goes where it goes."""
    note = _note_of(pending)
    if note.is_wanted and ranking.replica_ids:
        note.text = f"{ranking.replica_ids[0]}, {ranking.reason}"
