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

DECISION_BUCKETS_S = [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05]


class LeastLoadedRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the verifier with the fewest requests in flight."""

    def initialize_state(self, **_: Any) -> None:
        """Called by Serve once, before the first request."""
        self._ledger = PickLedger()
        self._picks = Counter(
            "paceline_router_picks_total",
            description="Requests sent to each verifier.",
            tag_keys=("verifier",),
        )
        self._decision_s = Histogram(
            "paceline_router_decision_seconds",
            description="Time to rank the verifiers.",
            boundaries=DECISION_BUCKETS_S,
        )

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
            self._picks.inc(tags={"verifier": best})
        self._decision_s.observe(time.perf_counter() - started_s)
        return [[by_id[replica_id]] for replica_id in ranking.replica_ids]
