"""The `paceline` command. It asks, reports and exits; the work is elsewhere."""

import dataclasses
import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cluster import render
from cluster.chat import Conversation
from cluster.cli_ngrams import corpus, forget
from cluster.errors import ClusterError
from cluster.local import LocalCluster
from cluster.terminal import console, errors, progress
from cluster.which import checked, clusters, running_cluster
from configs.errors import ConfigError
from kvstore.errors import StoreError
from replicas.errors import ReplicaError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve one large language model over many machines, with speculation as a property of "
    "the cluster.\n\nStart with `paceline up configs/local.yaml`, then `paceline chat`.",
)

FIRST_QUESTION = "Explain in three short sentences why a group of cyclists rides faster in a line."
ANSWER_TOKENS = 256
COUNTS_TIMEOUT_S = 5.0
"""Counts of drafts travel once a second, twice."""
POLL_S = 0.25

ConfigFile = Annotated[Path, typer.Argument(help="A cluster's YAML file.", show_default=False)]
Which = Annotated[
    str | None,
    typer.Argument(
        help="Name of a running cluster, or its YAML file. Needed where several run.",
        show_default=False,
    ),
]


@app.command()
def up(
    file: ConfigFile,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask a first question when the cluster is ready.")
    ] = False,
) -> None:
    """Start the cluster of FILE on this machine, and return when it answers.

    Redis, Ray, HAProxy and the verifiers go on running; `paceline down` ends them.
    A cluster that runs already is reused.
    """
    cluster = LocalCluster(checked(file, secrets=True), str(file.resolve()))
    started_s = time.monotonic()
    already = cluster.running()
    with progress() as report:
        cluster.up(report)
    if already is not None and already.ready:
        console.print(f"[bold]{cluster.config.name}[/] runs already; reusing it.")
    else:
        console.print(
            f"[bold]{cluster.config.name}[/] is ready after {time.monotonic() - started_s:.0f} s."
        )
    if ask:
        _answer(cluster, FIRST_QUESTION, ANSWER_TOKENS)
    _tell_how_to_go_on(cluster)


@app.command()
def status(
    which: Which = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show nodes, verifiers, acceptance and tokens per second."""
    from cluster.status import gather

    cluster, state = running_cluster(which)
    seen = gather(cluster, state)
    if as_json:
        sys.stdout.write(json.dumps(_as_data(seen)) + "\n")
    else:
        console.print(render.snapshot(seen))


@app.command()
def chat(
    question: Annotated[
        str | None, typer.Argument(help="One question. Left out: a conversation.")
    ] = None,
    which: Annotated[
        str | None, typer.Option("--cluster", help="Name or YAML file, where several run.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="An adapter's name instead of the base model's.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = ANSWER_TOKENS,
) -> None:
    """Ask the running cluster something; the answer streams.

    With API keys configured, put one into PACELINE_API_KEY.
    """
    cluster, _ = running_cluster(which)
    conversation = Conversation(cluster.url, model or cluster.config.model.name, max_tokens)
    if question is not None:
        _stream(conversation, question)
        return
    console.print("An empty line or Ctrl-D ends the conversation.")
    while text := _read_line():
        _stream(conversation, text)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="YAML files.", show_default=False)],
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Also look for the files and variables of secrets.")
    ] = False,
) -> None:
    """Say whether a cluster is possible, naming file, key and reason of each problem."""
    failed = False
    for file in files:
        try:
            checked(file, secrets)
        except ConfigError as error:
            failed = True
            errors.print(str(error), style="red", markup=False, soft_wrap=True)
        else:
            console.print(f"{file}: possible")
    raise typer.Exit(1 if failed else 0)


app.add_typer(corpus, name="corpus")
app.command()(forget)


@app.command()
def plan(
    file: ConfigFile,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="First take a profile on the running cluster of FILE."),
    ] = False,
) -> None:
    """Say which draft lengths pay at which load, or not to speculate, with the arithmetic.

    The profile is kept beside FILE, and used until the next --measure. Needs split drafting.
    """
    from cluster import plan_words, planner, profile

    config = checked(file, secrets=False)
    kept = profile.profile_file(file)
    if measure:
        cluster, _ = running_cluster(str(file))
        with progress() as report:
            profile.save(profile.measure(cluster, report), kept)
    known = profile.load(kept)
    made = planner.plan(known, config.drafting.max_length, profile.CONCURRENCIES)
    console.print(plan_words.plan(made))


@app.command("kv-server")
def kv_server(file: ConfigFile) -> None:
    """Run this node's LMCache server for the cluster of FILE, and keep it up, until ended.

    `paceline up` starts it by itself; this is for nodes where something else starts processes.
    """
    from cluster.kv_server import serve

    config = checked(file, secrets=False)
    if not config.kv.shared:
        raise ClusterError(f"{file}: kv.shared is false, so there is nothing to serve")
    with tempfile.TemporaryDirectory(prefix="paceline-kv-") as folder:
        serve(config, Path(folder) / "config.json")


@app.command()
def down(which: Which = None) -> None:
    """End a cluster and remove its processes, sockets and folder. Twice does no harm."""
    found = clusters(which)
    if not found:
        console.print("nothing runs")
        return
    for cluster in found:
        with progress() as report:
            report(f"ending {cluster.config.name}")
            cluster.down()
        console.print(f"[bold]{cluster.config.name}[/] is down")


def main() -> None:
    """Entry point: errors meant for people lose their traceback, Ctrl-C exits with 130."""
    # What Ray, vLLM and httpx say while they work is for their own logs.
    logging.disable(logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_like_ctrl_c)
    try:
        app()  # ends with 130 after Ctrl-C, and with 2 after words it does not know
    except (ClusterError, ConfigError, StoreError, ReplicaError) as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


def _end_like_ctrl_c(number: int, _: object) -> None:
    """Lets `up` take back what it started when it is ended from outside."""
    raise KeyboardInterrupt(number)


def _answer(cluster: LocalCluster, question: str, max_tokens: int) -> None:
    from cluster.status import accepted_by_source

    before = accepted_by_source(cluster)
    conversation = Conversation(cluster.url, cluster.config.model.name, max_tokens)
    console.print(f"\n[bold]> {question}[/]")
    _stream(conversation, question)
    if cluster.config.drafting.split is None or conversation.stats is None:
        return
    deadline_s = time.monotonic() + COUNTS_TIMEOUT_S
    while True:
        now = accepted_by_source(cluster)
        found = {source: count - before.get(source, 0) for source, count in now.items()}
        if sum(found.values()) >= conversation.stats.accepted_tokens:
            break
        if time.monotonic() > deadline_s:
            break
        time.sleep(POLL_S)
    told = ", ".join(f"{count} from {source}" for source, count in found.items() if count)
    console.print(f"[dim]accepted tokens: {told or 'none'}[/]\n")


def _stream(conversation: Conversation, question: str) -> None:
    for piece in conversation.ask(question):
        console.print(piece, end="", markup=False, soft_wrap=True)
    console.print(f"\n[dim]{conversation.stats}[/]\n")


def _read_line() -> str:
    try:
        return console.input("[bold]> [/]").strip()
    except EOFError:
        return ""


def _tell_how_to_go_on(cluster: LocalCluster) -> None:
    name = cluster.config.name
    console.print(f"API      {cluster.url}/v1   (model {cluster.config.model.name})")
    console.print("ask      paceline chat")
    console.print("look     paceline status")
    console.print(f"stop     paceline down {name}")


def _as_data(seen: object) -> object:
    if dataclasses.is_dataclass(seen) and not isinstance(seen, type):
        return {f.name: _as_data(getattr(seen, f.name)) for f in dataclasses.fields(seen)}
    if isinstance(seen, tuple | list):
        return [_as_data(item) for item in seen]
    if hasattr(seen, "__struct_fields__"):
        return msgspec.to_builtins(seen)
    if isinstance(seen, dict):
        return {key: _as_data(value) for key, value in seen.items()}
    return seen


if __name__ == "__main__":
    main()
