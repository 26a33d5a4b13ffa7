"""Are ports, folders, servers and secrets where the config says, and apart from each other?"""

import os
from collections.abc import Iterator

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
    ports, split = config.ports, config.drafting.split
    ranges = {"replicas": (ports.replicas_from, ports.replicas_to, config.verifiers.replicas)}
    if split is not None:
        ranges["drafts"] = (ports.drafts_from, ports.drafts_to, split.workers.replicas)
    owners: dict[int, str] = {}
    for name, port in ports:
        if not isinstance(port, int) or name.endswith(("_from", "_to")):
            continue
        key = f"ports.{name}"
        owner = owners.setdefault(port, key)
        if owner != key:
            yield Finding(key, f"{port} is {owner} already; use another")
        for of, (first, last, _) in ranges.items():
            if first <= port <= last:
                whose = "replicas'" if of == "replicas" else "draft workers'"
                yield Finding(key, f"{port} is in the {whose} range, {first} to {last}; move one")
    for of, (first, last, replicas) in ranges.items():
        wants = "verifiers.replicas" if of == "replicas" else "drafting.split.workers.replicas"
        if last - first + 1 < replicas:
            yield Finding(
                f"ports.{of}_to",
                f"{first} to {last} are too few ports for {wants} {replicas}; raise it to "
                f"{first + replicas - 1} or more",
            )
    if split is not None and (
        ports.drafts_from <= ports.replicas_to and ports.replicas_from <= ports.drafts_to
    ):
        yield Finding(
            "ports.drafts_from",
            f"{ports.drafts_from} to {ports.drafts_to} overlap the replicas' range, "
            f"{ports.replicas_from} to {ports.replicas_to}; move one",
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


RULES = (ports_are_apart, run_folder_fits_sockets, password_has_a_server, paths_exist)
