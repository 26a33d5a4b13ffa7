"""Where everything runs and listens."""

from pathlib import Path

from pydantic import Field

from configs.sections.values import ADDRESS_PATTERN, DiskPath, Port, SecretRef, Section


class RayConfig(Section):
    """The Ray cluster that everything runs on."""

    address: str | None = Field(
        None,
        pattern=ADDRESS_PATTERN,
        description="HOST:PORT of a Ray cluster that runs already, for `paceline up` to join. "
        "None: it starts one on this machine, at `ports.ray`.",
    )
    token: SecretRef | None = Field(
        None, description="Secret by which that cluster knows its members (Ray's auth token)."
    )
    on_head: bool | None = Field(
        None,
        description="Whether verifiers and draft workers may run on Ray's head node. None: only "
        "where that is the whole cluster's machine (no `ray.address` and no `redis.url`).",
    )


class PortsConfig(Section):
    """Every port a local cluster listens on."""

    host: str = Field(
        "127.0.0.1",
        description="Address that HAProxy and the replicas' HTTP servers listen on. `0.0.0.0` "
        "opens them to other machines, and is needed where nodes are several.",
    )
    http: Port = Field(8000, description="HAProxy: the OpenAI API.")
    redis: Port = Field(6480, description="The private Redis, loopback.")
    ray: Port = Field(6380, description="Ray's GCS.")
    dashboard: Port | None = Field(
        8265, description="Ray's dashboard, loopback. None: no dashboard, a faster start."
    )
    metrics: Port = Field(8080, description="Prometheus metrics of the node.")
    haproxy_metrics: Port = Field(9101, description="HAProxy's own Prometheus metrics.")
    haproxy_stats: Port = Field(8404, description="HAProxy's statistics page, loopback.")
    replicas_from: Port = Field(30000, description="First HTTP port of replicas.")
    replicas_to: Port = Field(31000, description="Last HTTP port of replicas.")
    drafts_from: Port = Field(31001, description="First port of draft workers.")
    drafts_to: Port = Field(31100, description="Last port of draft workers.")
    kv_from: Port = Field(
        31101, description="First port where verifiers tell routers of their KV blocks."
    )
    kv_to: Port = Field(31200, description="Last port of these.")
    lmcache: Port = Field(6580, description="The node's LMCache server, loopback.")
    lmcache_http: Port = Field(
        6581, description="Its health, state and Prometheus metrics, loopback."
    )


class FoldersConfig(Section):
    """Where a local cluster keeps its files."""

    run: DiskPath = Field(
        Path("/tmp/paceline"),  # noqa: S108  (short on purpose)
        description="Sockets, logs and state, in a folder of the cluster's name; short, because a "
        "socket's path has at most 107 bytes. Emptied by `paceline down`.",
    )
    models: DiskPath = Field(
        Path("~/.cache/paceline/models"), description="Where `builtin:` models are made and kept."
    )
