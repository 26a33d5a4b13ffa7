"""Are ports, folders, servers and secrets where the config says, and apart from each other?"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from configs.checks.rule import Finding
from configs.facts import Facts
from configs.schema import ClusterConfig

# A socket's path has at most 107 bytes (man 7 unix), and Ray adds up to 70 to the folder:
# /ray/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store
SOCKET_PATH_BYTES = 107
RAY_PATH_BYTES = 70
# HAProxy takes 97, of which its folder beside the run folders takes 67: /hxxxxxx/NODE_ID/m
HAPROXY_SOCKET_PATH_BYTES = 97
HAPROXY_PATH_BYTES = 67


def ports_are_apart(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Every port has one listener, and the ranges are free of the others and of each other."""
    ports = config.ports
    ranges = list(_ranges(config))
    owners: dict[int, str] = {}
    for name, port in ports:
        if not isinstance(port, int) or name.endswith(("_from", "_to")):
            continue
        key = f"ports.{name}"
        owner = owners.setdefault(port, key)
        if owner != key:
            yield Finding(key, f"{port} is {owner} already; use another")
        for r in ranges:
            if r.first <= port <= r.last:
                yield Finding(
                    key, f"{port} is in the {r.whose} range, {r.first} to {r.last}; move one"
                )
    for r in ranges:
        if r.last - r.first + 1 < r.needed:
            yield Finding(
                f"ports.{r.name}_to",
                f"{r.first} to {r.last} are too few ports for {r.wanted_by} {r.needed}; raise it "
                f"to {r.first + r.needed - 1} or more",
            )
    for one, other in combinations(ranges, 2):
        if other.first <= one.last and one.first <= other.last:
            yield Finding(
                f"ports.{other.name}_from",
                f"{other.first} to {other.last} overlap the {one.whose} range, "
                f"{one.first} to {one.last}; move one",
            )


@dataclass(frozen=True)
class _Range:
    """Ports `first` to `last`, called `name` in the config, of which `needed` are taken."""

    name: str
    whose: str
    first: int
    last: int
    needed: int
    wanted_by: str


def _ranges(config: ClusterConfig) -> Iterator[_Range]:
    ports, verifiers, workers = config.ports, config.most_verifiers, config.most_draft_workers
    scaling = config.autoscaling
    verifiers_key = "autoscaling.max_verifiers" if scaling else "verifiers.replicas"
    workers_key = "drafting.split.workers.replicas"
    if scaling and scaling.max_draft_workers:
        workers_key = "autoscaling.max_draft_workers"
    yield _Range(
        "replicas",
        "replicas'",
        ports.replicas_from,
        ports.replicas_to,
        verifiers,
        verifiers_key,
    )
    if config.drafting.split is not None:
        yield _Range(
            "drafts",
            "draft workers'",
            ports.drafts_from,
            ports.drafts_to,
            workers,
            workers_key,
        )
    if config.router.policy == "prefix_aware":
        yield _Range(
            "kv",
            "verifiers' KV",
            ports.kv_from,
            ports.kv_to,
            verifiers,
            verifiers_key,
        )


def router_sees_whose_request_it_is(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """A prefix-aware router that must tell tenants apart is shown their keys."""
    if (
        config.router.policy == "prefix_aware"
        and config.front_door.keys is not None
        and config.shown_header == "x-session-id"
    ):
        yield Finding(
            "router.shown_header",
            "`front_door.keys` asks for keys, and a router that is not shown them knows nobody's "
            "prefix; use `authorization` or `x-api-key`, or leave it out",
        )


def run_folder_fits_sockets(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """Ray's and HAProxy's sockets have paths that the system allows."""
    runs = config.folders.run
    for folder, limit, added in (
        (runs / config.name, SOCKET_PATH_BYTES, RAY_PATH_BYTES),
        (runs, HAPROXY_SOCKET_PATH_BYTES, HAPROXY_PATH_BYTES),
    ):
        room, length = limit - added, len(os.fsencode(folder))
        if length > room:
            yield Finding(
                "folders.run",
                f"{folder} has {length} bytes, and sockets in it allow {room}; use a shorter "
                "folder, or a shorter name",
            )
            return


def password_has_a_server(config: ClusterConfig, _facts: Facts) -> Iterator[Finding]:
    """The private Redis makes its own password."""
    if config.redis.password and config.redis.url is None:
        yield Finding(
            "redis.password",
            "is for an external server, but there is no redis.url; remove one or add the other",
        )


def paths_exist(config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Files and folders of a cluster on this machine are there."""
    if config.runs_on_this_machine:
        for key, path in facts.missing_paths:
            yield Finding(key, f"there is nothing at {path}; correct the path")


def secrets_are_there(_config: ClusterConfig, facts: Facts) -> Iterator[Finding]:
    """Every secret that is named can be read, and by nobody else."""
    for key, reason in facts.secret_problems:
        yield Finding(key, reason)


RULES = (
    ports_are_apart,
    router_sees_whose_request_it_is,
    run_folder_fits_sockets,
    password_has_a_server,
    paths_exist,
)
