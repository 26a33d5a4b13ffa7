"""The secret by which the parts of one cluster know each other.

Draft workers and verifiers sign with it, verifiers and routers, and LMCache the blocks that leave
its memory. A cluster on one machine has it in its run folder, where `paceline up` puts it; any
other names it in `drafting.split.token`, in `router.token` where nobody drafts, or in `kv.token`
where there is no prefix-aware router either.
"""

from pathlib import Path
from typing import Final

from configs.errors import SecretError
from configs.schema import ClusterConfig
from configs.secrets import read_secret
from configs.sections.values import SecretRef
from kvstore.errors import NoClusterToken

MIN_TOKEN_BYTES: Final = 16
"""Shortest cluster token."""


def token_file(run_folder: Path) -> Path:
    """Where a cluster on this machine keeps its token; only its owner may read it."""
    return run_folder / "draft-token"


def needs_token(config: ClusterConfig) -> bool:
    """Whether parts of this cluster talk to each other over sockets of ours."""
    return (
        config.drafting.split is not None
        or config.router.policy == "prefix_aware"
        or config.kv.shared
    )


def cluster_token(config: ClusterConfig) -> bytes:
    """The token of this cluster.

    Raises:
        NoClusterToken: It is missing, can be read by other users, or is shorter than
            `MIN_TOKEN_BYTES`.
    """
    split = config.drafting.split
    named = (split.token if split is not None else None) or config.router.token or config.kv.token
    key = "drafting.split.token"
    if split is None:
        key = "router.token" if config.router.policy == "prefix_aware" else "kv.token"
    remedy = f"name a secret of the whole cluster in `{key}`"
    run_folder = config.folders.run.expanduser() / config.name
    ref = named or SecretRef(file=token_file(run_folder))
    try:
        token = read_secret(ref).encode()
    except SecretError as error:
        if named is None and not token_file(run_folder).exists():
            raise NoClusterToken(
                f"no cluster `{config.name}` was started on this machine",
                f"start it with `paceline up`, or {remedy}",
            ) from error
        raise NoClusterToken(str(error), f"mend that, or {remedy}") from error
    if len(token) < MIN_TOKEN_BYTES:
        raise NoClusterToken(
            f"it has {len(token)} bytes", f"it needs at least {MIN_TOKEN_BYTES}, random ones"
        )
    return token
