"""Shared KV blocks, and the cluster's memory."""

from typing import Literal

from pydantic import Field

from configs.sections.values import (
    MAX_TOKENS,
    REDIS_URL_PATTERN,
    DiskPath,
    Many,
    SecretRef,
    Section,
)


class KvTier(Section):
    """One tier of shared KV blocks behind the verifiers' own caches."""

    kind: Literal["dram", "disk", "redis"] = Field(description="Where the blocks lie.")
    size_gib: float | None = Field(
        None,
        gt=0,
        description="Capacity, GiB: of each node for `dram` and `disk`, which need it; of what one "
        "node keeps in Redis for `redis`. None there: three quarters of the server's own limit.",
    )
    path: DiskPath | None = Field(None, description="Folder of the `disk` tier.")


class KvConfig(Section):
    """KV blocks shared between verifiers, by one LMCache server on each node (docs/kv.md)."""

    shared: bool = Field(False, description="Run LMCache and wire every verifier to it.")
    chunk_size: int = Field(
        256,
        ge=1,
        le=65536,
        description="Tokens that LMCache moves at once; a multiple of the block size.",
    )
    tiers: Many[KvTier] = Field(
        (KvTier(kind="dram", size_gib=1.0),), description="From the nearest to the farthest."
    )
    eviction: Literal["lru", "arc"] = Field(
        "lru",
        description="What leaves a full `dram` or `disk` tier first: what was used longest ago, "
        "or (ARC) that with an eye on how often.",
    )
    ttl_s: int = Field(
        86400, ge=1, le=31536000, description="How long blocks stay in Redis, seconds."
    )
    fetch: Literal["auto", "always"] = Field(
        "auto",
        description="`auto`: blocks are fetched where that is measured to be faster than computing "
        "them. `always`: wherever they are found.",
    )
    shortest_fetch: int = Field(
        256,
        ge=1,
        le=MAX_TOKENS,
        description="Prompts with fewer tokens left to compute are not looked up, tokens.",
    )
    wait_max_ms: float = Field(
        1000.0,
        gt=0,
        le=60000,
        description="Longest wait of a request for what the tiers hold of it, whatever it would "
        "save; then it is computed.",
    )
    token: SecretRef | None = Field(
        None,
        description="Secret of at least 16 bytes by which blocks in Redis and on disk are known to "
        "be this cluster's. None: that of `drafting.split` or `router`, or the one that "
        "`paceline up` makes.",
    )


class RedisConfig(Section):
    """The cluster's memory: registry, n-gram exchange, rate limits, remote KV."""

    url: str | None = Field(
        None,
        pattern=REDIS_URL_PATTERN,
        description="redis:// or rediss:// without a password. None: `paceline up` starts a "
        "private server on loopback.",
    )
    password: SecretRef | None = Field(None, description="Password of an external server.")
    memory_mib: int = Field(
        256, ge=16, le=16777216, description="Memory of the private server, MiB."
    )
