"""`paceline corpus` and `paceline forget`: what draft workers draft from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.errors import ClusterError
from cluster.terminal import console
from cluster.which import config_named, running_cluster

if TYPE_CHECKING:
    from cluster.ngrams import FleetNgrams

corpus = typer.Typer(
    no_args_is_help=True, help="Texts that draft workers draft from, besides what they have seen."
)
OfCluster = Annotated[
    str | None, typer.Option("--cluster", help="Name or YAML file, where several run.")
]


@corpus.command("add")
def corpus_add(
    file: Annotated[Path, typer.Argument(help="UTF-8 text.", show_default=False)],
    name: Annotated[str | None, typer.Option(help="Listed by it; the file's name.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Drafted from for this tenant only; else for everybody.")
    ] = None,
    which: OfCluster = None,
) -> None:
    """Have every draft worker draft from FILE within seconds; a known name is replaced."""
    added = _ngrams(which).add(file, name or file.name, tenant)
    console.print(f"{added.name}: {added.tokens} tokens for {added.tenant or 'everybody'}")


@corpus.command("list")
def corpus_list(which: OfCluster = None) -> None:
    """Show all corpora."""
    for entry in _ngrams(which).list():
        console.print(f"{entry.name}: {entry.tokens} tokens for {entry.tenant or 'everybody'}")


@corpus.command("remove")
def corpus_remove(
    name: Annotated[str, typer.Argument(help="As listed.", show_default=False)],
    which: OfCluster = None,
) -> None:
    """Have no draft worker draft from a corpus any more."""
    if not _ngrams(which).remove(name):
        raise ClusterError(f"no corpus is called `{name}`; see `paceline corpus list`")
    console.print(f"{name} is removed")


def forget(
    tenant: Annotated[str, typer.Argument(help="As in the keys file.", show_default=False)],
    which: OfCluster = None,
) -> None:
    """Remove what TENANT's requests left in the n-gram indices, everywhere, and its corpora.

    What its requests leave from now on is new. Requests that run now are, too, when they end.
    """
    entries, removed = _ngrams(which).forget(tenant)
    console.print(
        f"{tenant or 'all'}: {entries} entries of the stream and {removed} corpora removed; the "
        "draft workers follow within seconds"
    )


def _ngrams(which: str | None) -> "FleetNgrams":
    from cluster.ngrams import FleetNgrams

    # Also a cluster that was not started here, by its file.
    return FleetNgrams(config_named(which) or running_cluster(which)[0].config)
