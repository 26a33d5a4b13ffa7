"""Says with rich tables what a `Snapshot` holds."""

import time
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.scaling_words import scaling_words
from cluster.status import DraftWorkerStatus, NodeStatus, Snapshot, VerifierStatus
from kvstore.draft_report import DraftModelReport, NgramReport
from kvstore.kv_reports import KvServerReport, SharingReport
from kvstore.verifier_report import GovernorReport


def snapshot(seen: Snapshot) -> RenderableType:
    """The whole status, top to bottom: cluster, nodes, verifiers, drafting, notes."""
    states = ", ".join(f"{count} {state.lower()}" for state, count in seen.replica_states.items())
    # A cluster that scales starts verifiers without any that died.
    restarts = max(0, seen.starts - len(seen.verifiers)) if seen.scaling is None else 0
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
    parts += [
        Text(f"{verifier.report.worker_id}: {drafting_words(verifier.report.governor)}")
        for verifier in seen.verifiers
        if verifier.report.governor is not None
    ]
    if seen.draft_workers:
        parts.append(_draft_workers(seen.draft_workers))
    parts += [
        Text(f"{worker.report.worker_id}: {ngram_words(worker.report.ngrams)}")
        for worker in seen.draft_workers
        if worker.report.ngrams is not None
    ]
    if seen.scaling is not None:
        parts += [Text(line) for line in scaling_words(seen.scaling, time.time())]
    if seen.kv_servers:
        parts.append(_kv_servers(seen.kv_servers))
    parts += [
        Text(f"{verifier.report.worker_id}: {sharing_words(verifier.report.sharing)}")
        for verifier in seen.verifiers
        if verifier.report.sharing is not None
    ]
    parts += [
        Text(f"{worker.report.worker_id}: {model_words(worker.report.model)}")
        for worker in seen.draft_workers
        if worker.report.model is not None
    ]
    parts += [Text(f"! {note}", style="yellow") for note in seen.notes]
    return Group(*parts)


REASONS = {
    "pays": "each token of a draft is expected to save time, one more is not",
    "longest": "drafts are as long as they may be",
    "costs_more": "no draft is expected to save time",
    "requested": "requests or their class say how long",
    "pressure": "the front door asks for less",
    "step": "longer drafts would pay, but `drafting.governor.longest_step` forbids longer steps",
    "probe": "drafts are tried now and then, to see whether they pay again",
}
"""Words for `replicas.verifier.governor.Reason`."""


def drafting_words(governor: GovernorReport) -> str:
    """Why drafting is where it is: acceptance, draft cost, length, batch."""
    steps = sum(governor.lengths)
    if not steps:
        return f"draft lengths: {governor.mode}, nothing decoded yet"
    places = " ".join(f"{rate:.0%}" for rate in governor.acceptance[:4])
    pays = "pays" if governor.gain > governor.gain_needed else "does not pay"
    reason = REASONS.get(governor.reason, governor.reason)
    pressure = f", pressure {governor.pressure}" if governor.pressure else ""
    return (
        f"acceptance by place {places}; the best draft token brings {governor.gain:.2f} tokens, "
        f"needs {governor.gain_needed:.2f} and {pays}, waiting takes "
        f"{governor.wait_s * 1e3:.1f} ms a step; length {governor.mean_length:.1f} of at most "
        f"{len(governor.lengths) - 1} ({governor.mode}): {reason}; batch of "
        f"{governor.mean_rows:.1f}, {governor.token_s * 1e3:.1f} ms a token{pressure}"
    )


def _nodes(nodes: tuple[NodeStatus, ...]) -> Table:
    table = table_of("node", "state", right=("CPU", "GPU", "memory"))
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
    table = table_of(
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
    table = table_of(
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
    table = table_of(
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
    table = table_of(
        *("draft worker", "endpoint", "kinds", "seen as"),
        right=("sessions", "drafts/s", "busy", "bad asks"),
    )
    for worker in workers:
        report = worker.report
        table.add_row(
            report.worker_id,
            report.endpoint.removeprefix("tcp://"),
            ", ".join(report.kinds),
            ", ".join(sorted({state.split(":")[0] for state in worker.seen_as.values()})) or "-",
            str(report.sessions),
            f"{worker.drafted_per_s:.0f}",
            f"{report.busy_ratio:.0%}",
            str(sum(report.malformed.values())),
        )
    return table


def _kv_servers(servers: tuple[KvServerReport, ...]) -> Table:
    table = table_of(
        *("LMCache", "state", "tier"),
        right=("starts", "found", "stored", "missed", "refused", "failed", "MB/s"),
    )
    table.columns[0].overflow = "fold"
    for server in servers:
        state = "up" if server.is_healthy else "down"
        table.add_row(server.node_ip, state, "memory", str(server.starts))
        for tier in server.tiers:
            counts = tier.counts
            table.add_row(
                "",
                "up" if tier.is_healthy else "left alone",
                tier.kind,
                "",
                *(str(counts.get(what, 0)) for what in ("loaded", "stored", "missed", "refused")),
                str(counts.get("failed", 0) + counts.get("dropped", 0)),
                f"{tier.bytes_per_s / 1e6:.0f}" if tier.bytes_per_s else "-",
            )
    return table


def sharing_words(sharing: SharingReport) -> str:
    """What a verifier fetched, and what its gate decides by."""
    outcomes = ", ".join(f"{count} {what}" for what, count in sharing.outcomes.items())
    passed_by = sharing.decided.get("short", 0), sharing.decided.get("slower", 0)
    costs = {"computing": sharing.compute, "from memory": sharing.load, **sharing.tiers}
    rates = ", ".join(
        f"{source} {line.base_s * 1e3:.0f} ms + {line.s_per_token * 1e3:.2f} ms a token"
        for source, line in costs.items()
        if line is not None
    )
    return (
        f"shared KV: {'' if sharing.is_healthy else 'LMCache is away; '}"
        f"look-ups: {outcomes or 'none'}; {passed_by[0]} too short, {passed_by[1]} not worth it; "
        f"{sharing.tokens} tokens fetched; {rates or 'nothing measured yet'}"
    )


def model_words(model: DraftModelReport) -> str:
    """How a draft worker's model is doing."""
    ready = f"{model.ready / model.asked:.0%}" if model.asked else "none"
    went_on = model.followed + model.branched + model.restarted
    foreseen = f"{model.followed / went_on:.0%}" if went_on else "none"
    return (
        f"draft model {model.name}: {ready} of {model.asked} asks were ready before they came, "
        f"{foreseen} of texts went on as drafted, {model.branched} as prepared for; "
        f"{model.generated} tokens generated; "
        f"{model.running} of {model.places} places in use, {model.step_s * 1e3:.0f} ms a step, "
        f"busy {model.busy_ratio:.0%}"
    )


def ngram_words(ngrams: NgramReport) -> str:
    """What a draft worker knows of the fleet's n-grams, and how they travel."""
    found = f"{ngrams.hits / ngrams.lookups:.0%}" if ngrams.lookups else "none"
    corpora = f" and {ngrams.corpus_tokens} of corpora" if ngrams.corpus_tokens else ""
    trouble = [
        f"{count} {what}"
        for count, what in (
            (ngrams.lost, "lost"),
            (ngrams.garbage, "not believed"),
            (ngrams.gates_closed, "sources closed, their drafts did not pay"),
        )
        if count
    ]
    return (
        f"n-grams: {ngrams.tokens} tokens{corpora}, {ngrams.held_bytes / (1 << 20):.0f} MiB; "
        f"{found} of {ngrams.lookups} lookups found something; "
        + ("" if ngrams.connected else "cut off from the other workers; ")
        + f"{ngrams.published} texts told, {ngrams.received} received, the last after "
        f"{ngrams.delay_s:.1f} s" + (f"; {', '.join(trouble)}" if trouble else "")
    )


def table_of(*left: str, right: tuple[str, ...]) -> Table:
    """An empty table of the look that all have; columns of `right` are numbers."""
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
