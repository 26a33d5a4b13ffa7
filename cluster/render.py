"""Says with rich tables what a `Snapshot` holds."""

from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.status import DraftWorkerStatus, NodeStatus, Snapshot, VerifierStatus


def snapshot(seen: Snapshot) -> RenderableType:
    """The whole status, top to bottom: cluster, nodes, verifiers, drafting, notes."""
    states = ", ".join(f"{count} {state.lower()}" for state, count in seen.replica_states.items())
    restarts = max(0, seen.starts - len(seen.verifiers))
    lines = [
        Text.assemble(
            (seen.name, "bold"), f"  {seen.application}  {seen.url}  up {_span(seen.uptime_s)}"
        ),
        Text(
            f"verifier replicas: {states or 'none'}"
            + (f"; {restarts} restarted since the start" if restarts else "")
        ),
    ]
    parts: list[RenderableType] = [
        *lines,
        _nodes(seen.nodes),
        _load(seen.verifiers),
        _tokens(seen.verifiers),
    ]
    if any(verifier.report.draft_sources for verifier in seen.verifiers):
        parts.append(_sources(seen.verifiers))
    if seen.draft_workers:
        parts.append(_draft_workers(seen.draft_workers))
    parts += [Text(f"! {note}", style="yellow") for note in seen.notes]
    return Group(*parts)


def _nodes(nodes: tuple[NodeStatus, ...]) -> Table:
    table = _table("node", "state", right=("CPU", "GPU", "memory"))
    for node in nodes:
        resources = node.resources
        table.add_row(
            node.address,
            "alive" if node.alive else "dead",
            f"{resources.get('CPU', 0):g}",
            f"{resources.get('GPU', 0):g}",
            f"{resources.get('memory', 0) / (1 << 30):.1f} GiB",
        )
    return table


def _load(verifiers: tuple[VerifierStatus, ...]) -> Table:
    table = _table(
        *("verifier", "node", "pid", "up"),
        right=("running", "waiting", "finished", "TTFT", "KV"),
    )
    for verifier in verifiers:
        report = verifier.report
        mean_ttft_s = report.ttft_sum_s / report.ttft_count if report.ttft_count else None
        table.add_row(
            report.worker_id,
            report.node_ip,
            str(report.pid),
            _span(verifier.uptime_s),
            str(report.requests_running),
            str(report.requests_waiting),
            str(report.requests_finished),
            _or_dash(mean_ttft_s, "{:.2f} s"),
            f"{report.kv_cache_usage:.0%}",
        )
    return table


def _tokens(verifiers: tuple[VerifierStatus, ...]) -> Table:
    table = _table(
        "verifier",
        right=("tokens/s", "tokens", "drafted", "accepted", "acceptance", "tokens/step"),
    )
    for verifier in verifiers:
        report = verifier.report
        table.add_row(
            report.worker_id,
            f"{verifier.tokens_per_s:.1f}",
            str(report.output_tokens),
            str(report.drafted_tokens),
            str(report.accepted_tokens),
            _or_dash(verifier.acceptance, "{:.0%}"),
            _or_dash(verifier.tokens_per_step, "{:.2f}"),
        )
    return table


def _sources(verifiers: tuple[VerifierStatus, ...]) -> Table:
    """Where the drafts came from, and how far into a draft the target agreed."""
    table = _table(
        *("verifier", "drafts from"), right=("drafted", "accepted", "acceptance", "by place")
    )
    for verifier in verifiers:
        for source, counts in sorted(verifier.report.draft_sources.items()):
            drafted, accepted = sum(counts.drafted), sum(counts.accepted)
            places = [
                f"{right / seen:.0%}" if seen else "-"
                for seen, right in zip(counts.drafted, counts.accepted, strict=True)
            ]
            table.add_row(
                verifier.report.worker_id,
                source,
                str(drafted),
                str(accepted),
                _or_dash(accepted / drafted if drafted else None, "{:.0%}"),
                " ".join(places),
            )
    return table


def _draft_workers(workers: tuple[DraftWorkerStatus, ...]) -> Table:
    table = _table(
        *("draft worker", "endpoint", "kinds", "seen as"),
        right=("sessions", "drafts/s", "busy", "bad asks"),
    )
    for worker in workers:
        report = worker.report
        table.add_row(
            report.worker_id,
            report.endpoint.removeprefix("tcp://"),
            ", ".join(report.kinds),
            ", ".join(sorted(set(worker.seen_as.values()))) or "-",
            str(report.sessions),
            f"{worker.drafted_per_s:.0f}",
            f"{report.busy_ratio:.0%}",
            str(sum(report.malformed.values())),
        )
    return table


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _or_dash(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _span(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
