"""The environment every Ray process of a cluster must start with.

Ray Serve reads its fast path from the environment when it is imported, so the
same variables go to the head, to workers and to the process that deploys.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import FastPathMissing
from configs.schema import ClusterConfig

FAST_PATH = {
    # HAProxy takes the requests and streams straight from the verifiers.
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    # Without it the router sees no body.
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
SHOWN_HEADER = "RAY_SERVE_SESSION_ID_HEADER_KEY"
"""Names the one header that the router is shown."""


def fast_path_environment(config: ClusterConfig) -> dict[str, str]:
    """Variables that every node needs, wherever the cluster runs."""
    verifiers, ports = config.verifiers, config.ports
    return FAST_PATH | {
        SHOWN_HEADER: config.shown_header,
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(verifiers.drain_s),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.replicas_from),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.replicas_to),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.haproxy_metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.haproxy_stats),
        "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE": str(config.router.seen_kib << 10),
        # A reload must not cut the longest stream.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(verifiers.longest_stream_s + 60),
        # A verifier that dies before it has said anything: another is asked, once. The front door
        # says nothing before the first token, and a request that kills engines kills two at most.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "1",
        "RAYLLM_ENGINE_START_TIMEOUT_S": str(verifiers.start_timeout_s),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Serve's own log lines may carry request bodies otherwise.
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
        # The throughput setting would hold back log lines until there are a thousand.
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
        "RAY_metrics_report_interval_ms": "5000",
        # Ten times a second costs a small machine 4 % of a core, for ever.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        "HF_HUB_OFFLINE": "1",
    }


def local_environment(config: ClusterConfig, run_folder: Path) -> dict[str, str]:
    """What a cluster on this machine adds: its files go to its own folder.

    Of a Ray cluster that is joined, the nodes have their own folders.
    """
    if config.ray.address is not None:
        return fast_path_environment(config) | _ray_token(config.ray.token is not None, run_folder)
    haproxy = haproxy_folder(run_folder)
    return (
        fast_path_environment(config)
        | _ray_token(True, run_folder)
        | {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "a"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "m"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
            # vLLM's and Python's own sockets and temporary folders, too.
            "TMPDIR": str(run_folder / "tmp"),
        }
    )


def _ray_token(is_needed: bool, run_folder: Path) -> dict[str, str]:
    """Who has no token can't talk to Ray, but where a cluster that is joined asks for none."""
    if not is_needed:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(ray_token_file(run_folder))}


def haproxy_folder(run_folder: Path) -> Path:
    """Where HAProxy's files go: beside the run folder, under a short name.

    HAProxy takes socket paths of at most 97 bytes, and Ray adds a folder of 56.
    """
    short = hashlib.sha256(run_folder.name.encode()).hexdigest()[:6]
    return run_folder.parent / f"h{short}"


def ray_token_file(run_folder: Path) -> Path:
    """Where the token of a local Ray cluster is kept, for its owner alone."""
    return run_folder / "ray.token"


def missing_fast_path(shown_header: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that are not set as they must be, with what they must be.

    Args:
        shown_header: The header that routers are shown, `ClusterConfig.shown_header`.
        environment: Of the process.
    """
    needed = FAST_PATH | {SHOWN_HEADER: shown_header}
    given = {SHOWN_HEADER: "x-session-id", **environment}  # Ray's default.
    return [f"{key}={value}" for key, value in needed.items() if given.get(key) != value]


def require_fast_path(config: ClusterConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Refuses to build an application that would silently take the slow path, or route blindly.

    Raises:
        FastPathMissing: Names each variable that is not set as it must be.
    """
    if missing := missing_fast_path(config.shown_header, environment):
        raise FastPathMissing(missing)
