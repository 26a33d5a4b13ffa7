"""What a running cluster is doing: gathered from Serve, Ray and the registry.

`gather` does the I/O, `Snapshot` is what there is to say, `cluster/render.py`
says it.
"""

import time
from dataclasses import dataclass
from typing import Any

from cluster.local import LocalCluster
from cluster.state import RunState
from kvstore.errors import StoreUnavailable
from kvstore.redis_client import redis_settings
from kvstore.registry import VerifierReport, read_live

RATE_WINDOW_S = 1.2


@dataclass(frozen=True)
class NodeStatus:
    """One Ray node."""

    address: str
    alive: bool
    resources: dict[str, float]


@dataclass(frozen=True)
class VerifierStatus:
    """One verifier, as it reports itself. Rates are per second, ratios 0-1."""

    report: VerifierReport
    uptime_s: float
    tokens_per_s: float
    acceptance: float | None
    tokens_per_step: float | None


@dataclass(frozen=True)
class Snapshot:
    """The whole cluster at one moment.

    Attributes:
        application: Serve's word for the application, and its message if it has one.
        replica_states: Serve's states of the verifier replicas, counted.
        starts: Verifier starts since the cluster came up; more than replicas means restarts.
        notes: What could not be seen, and why.
    """

    name: str
    url: str
    uptime_s: float
    application: str
    replica_states: dict[str, int]
    nodes: tuple[NodeStatus, ...]
    verifiers: tuple[VerifierStatus, ...]
    starts: int
    notes: tuple[str, ...]


def gather(cluster: LocalCluster, state: RunState) -> Snapshot:
    """Looks at the cluster; takes about a second, to see rates.

    What can't be reached becomes a note: a status must work best when things are broken.
    """
    notes: list[str] = []
    application, replica_states, nodes = _from_ray(cluster, notes)
    before, _ = _reports(cluster, notes)
    time.sleep(RATE_WINDOW_S)
    after, starts = _reports(cluster, notes)
    now_s = time.time()
    return Snapshot(
        name=cluster.config.name,
        url=cluster.url,
        uptime_s=now_s - state.started_at_s,
        application=application,
        replica_states=replica_states,
        nodes=nodes,
        verifiers=tuple(
            verifier_status(report, before.get(worker_id), now_s)
            for worker_id, report in sorted(after.items())
        ),
        starts=starts,
        notes=tuple(dict.fromkeys(notes)),
    )


def verifier_status(
    report: VerifierReport, earlier: VerifierReport | None, now_s: float
) -> VerifierStatus:
    """What two reports of one verifier say together."""
    tokens_per_s = 0.0
    if earlier is not None and report.reported_at_s > earlier.reported_at_s:
        tokens = report.output_tokens - earlier.output_tokens
        tokens_per_s = tokens / (report.reported_at_s - earlier.reported_at_s)
    drafted, steps = report.drafted_tokens, report.sequence_steps
    return VerifierStatus(
        report=report,
        uptime_s=now_s - report.started_at_s,
        tokens_per_s=tokens_per_s,
        acceptance=report.accepted_tokens / drafted if drafted else None,
        tokens_per_step=report.output_tokens / steps if steps else None,
    )


def _reports(cluster: LocalCluster, notes: list[str]) -> tuple[dict[str, VerifierReport], int]:
    try:
        listing = read_live(redis_settings(cluster.config), cluster.config.name, "verifier")
    except StoreUnavailable as error:
        notes.append(f"the registry can't be read: {error}")
        return {}, 0
    notes.extend(listing.skipped)
    return {report.worker_id: report for report in listing.reports}, listing.starts


def _from_ray(
    cluster: LocalCluster, notes: list[str]
) -> tuple[str, dict[str, int], tuple[NodeStatus, ...]]:
    cluster.adopt_environment()
    import ray
    from ray import serve

    from cluster.connection import connected

    try:
        with connected(cluster.config):
            application = serve.status().applications.get(cluster.config.name)
            nodes = tuple(
                NodeStatus(node["NodeManagerAddress"], node["Alive"], _named(node["Resources"]))
                for node in ray.nodes()
            )
    except Exception as error:  # whatever Ray says, the rest is still worth showing
        notes.append(f"Ray can't be asked: {error}")
        return "unknown", {}, ()
    if application is None:
        return "not deployed", {}, nodes
    states: dict[str, int] = {}
    for name, deployment in application.deployments.items():
        if name.startswith("Verifier"):
            states = {str(key): count for key, count in deployment.replica_states.items() if count}
            if deployment.message:
                notes.append(deployment.message)
    return str(application.status.value), states, nodes


def _named(resources: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in resources.items() if not key.startswith("node:")}
