"""What a running cluster is doing: gathered from Serve, Ray and the registry.

`gather` does the I/O, `Snapshot` is what there is to say, `cluster/render.py`
says it.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cluster.local import LocalCluster
from cluster.state import RunState
from kvstore.draft_report import DraftWorkerReport
from kvstore.errors import StoreUnavailable
from kvstore.kv_reports import KvServerReport
from kvstore.redis_client import redis_settings
from kvstore.registry import Listing, read_live
from kvstore.scaling_report import ScalingReport, read_scaling
from kvstore.verifier_report import VerifierReport

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
class DraftWorkerStatus:
    """One draft worker, as it reports itself and as the verifiers see it.

    Attributes:
        drafted_per_s: Draft tokens per second.
        seen_as: What each verifier says of it, by verifier: `closed` is good, `open` means
            that it is left alone for a while.
    """

    report: DraftWorkerReport
    uptime_s: float
    drafted_per_s: float
    seen_as: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """The whole cluster at one moment.

    Attributes:
        application: Serve's word for the application, and its message if it has one.
        replica_states: Serve's states of the verifier replicas, counted.
        kv_servers: The nodes' LMCache servers, as they are told of.
        starts: Verifier starts since the cluster came up; more than replicas means restarts.
        notes: What could not be seen, and why.
        scaling: The last decision of the autoscaler, if there is one.
    """

    name: str
    url: str
    uptime_s: float
    application: str
    replica_states: dict[str, int]
    nodes: tuple[NodeStatus, ...]
    verifiers: tuple[VerifierStatus, ...]
    draft_workers: tuple[DraftWorkerStatus, ...]
    starts: int
    notes: tuple[str, ...]
    scaling: ScalingReport | None = None
    kv_servers: tuple[KvServerReport, ...] = ()


def gather(cluster: LocalCluster, state: RunState) -> Snapshot:
    """Looks at the cluster; takes about a second, to see rates.

    What can't be reached becomes a note: a status must work best when things are broken.
    """
    notes: list[str] = []
    application, replica_states, nodes = _from_ray(cluster, notes)
    before, drafters_before, _ = _reports(cluster, notes)
    time.sleep(RATE_WINDOW_S)
    after, drafters, starts = _reports(cluster, notes)
    kv_servers = _kv_servers(cluster, notes)
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
        draft_workers=tuple(
            draft_worker_status(report, drafters_before.get(worker_id), after.values(), now_s)
            for worker_id, report in sorted(drafters.items())
        ),
        starts=starts,
        scaling=_scaling(cluster, notes) if cluster.config.autoscaling else None,
        notes=tuple(dict.fromkeys(notes)),
        kv_servers=kv_servers,
    )


def _scaling(cluster: LocalCluster, notes: list[str]) -> ScalingReport | None:
    try:
        decided = read_scaling(redis_settings(cluster.config), cluster.config.name)
    except StoreUnavailable:
        return None  # told already, with the registry
    if decided is None:
        notes.append("the autoscaler has decided nothing yet")
    return decided


def accepted_by_source(cluster: LocalCluster) -> dict[str, int]:
    """Accepted draft tokens of all verifiers since their start, by where they came from.

    Raises:
        StoreUnavailable: The registry can't be read.
    """
    accepted: dict[str, int] = {}
    settings = redis_settings(cluster.config)
    for report in read_live(settings, cluster.config.name, "verifier").reports:
        for source, counts in report.draft_sources.items():
            accepted[source] = accepted.get(source, 0) + sum(counts.accepted)
    return accepted


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


def draft_worker_status(
    report: DraftWorkerReport,
    earlier: DraftWorkerReport | None,
    verifiers: Iterable[VerifierReport],
    now_s: float,
) -> DraftWorkerStatus:
    """What two reports of one draft worker and those of the verifiers say together."""
    drafted_per_s = 0.0
    if earlier is not None and report.reported_at_s > earlier.reported_at_s:
        drafted = report.drafted_tokens - earlier.drafted_tokens
        drafted_per_s = drafted / (report.reported_at_s - earlier.reported_at_s)
    return DraftWorkerStatus(
        report=report,
        uptime_s=now_s - report.started_at_s,
        drafted_per_s=drafted_per_s,
        seen_as={
            verifier.worker_id: verifier.draft_workers.get(report.worker_id, "not known yet")
            for verifier in verifiers
        },
    )


def _reports(
    cluster: LocalCluster, notes: list[str]
) -> tuple[dict[str, VerifierReport], dict[str, DraftWorkerReport], int]:
    name = cluster.config.name
    verifiers: Listing[VerifierReport] = Listing((), (), 0)
    drafters: Listing[DraftWorkerReport] = Listing((), (), 0)
    try:
        settings = redis_settings(cluster.config)
        verifiers = read_live(settings, name, "verifier")
        if cluster.config.drafting.split is not None:
            drafters = read_live(settings, name, "draft")
    except StoreUnavailable as error:
        notes.append(f"the registry can't be read: {error}")
    notes.extend([*verifiers.skipped, *drafters.skipped])
    notes.extend(
        f"draft worker {worker_id} is {state}"
        for verifier in verifiers.reports
        for worker_id, state in verifier.draft_workers.items()
        if state.startswith("refused")
    )
    return (
        {report.worker_id: report for report in verifiers.reports},
        {report.worker_id: report for report in drafters.reports},
        verifiers.starts,
    )


def _kv_servers(cluster: LocalCluster, notes: list[str]) -> tuple[KvServerReport, ...]:
    if not cluster.config.kv.shared:
        return ()
    try:
        servers = read_live(redis_settings(cluster.config), cluster.config.name, "kv")
    except StoreUnavailable:  # noted already, with the verifiers
        return ()
    notes.extend(servers.skipped)
    if not servers.reports:
        notes.append("no LMCache server is alive: verifiers compute all KV blocks themselves")
    return servers.reports


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
