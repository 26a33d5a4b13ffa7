"""The floor of routing: Serve's own way round a router that looks at nothing."""

from collections.abc import Sequence

from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica


class EmptyRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Takes the first verifier."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> Sequence[list[RunningReplica]]:
        """The candidates as they come."""
        return [candidate_replicas]
