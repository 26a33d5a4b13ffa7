"""The secret by which verifiers and draft workers know each other.

A cluster on one machine has it in its run folder, where `paceline up` puts it; any other
names it in `drafting.split.token`.
"""

from pathlib import Path

from configs.errors import SecretError
from configs.schema import ClusterConfig, SecretRef
from configs.secrets import read_secret
from replicas.errors import NoClusterToken
from replicas.messages import MIN_TOKEN_BYTES

REMEDY = "name a secret of the whole cluster in `drafting.split.token`"


def token_file(run_folder: Path) -> Path:
    """Where a cluster on this machine keeps its token; only its owner may read it."""
    return run_folder / "draft-token"


def cluster_token(config: ClusterConfig) -> bytes:
    """The token of this cluster.

    Raises:
        NoClusterToken: It is missing, can be read by other users, or is shorter than
            `MIN_TOKEN_BYTES`.
    """
    split = config.drafting.split
    named = split.token if split is not None else None
    run_folder = config.folders.run.expanduser() / config.name
    ref = named or SecretRef(file=token_file(run_folder))
    try:
        token = read_secret(ref).encode()
    except SecretError as error:
        if named is None and not token_file(run_folder).exists():
            raise NoClusterToken(
                f"no cluster `{config.name}` was started on this machine",
                f"start it with `paceline up`, or {REMEDY}",
            ) from error
        raise NoClusterToken(str(error), f"mend that, or {REMEDY}") from error
    if len(token) < MIN_TOKEN_BYTES:
        raise NoClusterToken(
            f"it has {len(token)} bytes", f"it needs at least {MIN_TOKEN_BYTES}, random ones"
        )
    return token
