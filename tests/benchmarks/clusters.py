"""Clusters of a benchmark, side by side on this machine: each started by the command line."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from cluster.local import LocalCluster
from configs import ClusterConfig

PORTS_APART = 1000


def moved(config: ClusterConfig, place: int) -> ClusterConfig:
    """The same cluster under ports and a name of its own; `place` counts from 0."""
    ports = {
        name: port + PORTS_APART * place if isinstance(port, int) else port
        for name, port in config.ports
    }
    ports |= {
        "replicas_from": config.ports.replicas_from + 200 * place,
        "replicas_to": config.ports.replicas_from + 200 * place + 99,
        "drafts_from": config.ports.replicas_from + 200 * place + 100,
        "drafts_to": config.ports.replicas_from + 200 * place + 199,
    }
    return config.model_copy(
        update={"name": f"bench-{place}", "ports": config.ports.model_copy(update=ports)}
    )


@contextmanager
def running(configs: Mapping[str, ClusterConfig]) -> Iterator[dict[str, LocalCluster]]:
    """Starts a cluster for each name, all at once, and ends them at the end.

    Raises:
        RuntimeError: One did not start; carries its words.
    """
    clusters = {name: LocalCluster(config) for name, config in configs.items()}
    with tempfile.TemporaryDirectory() as folder:
        starting = {}
        try:
            for name, cluster in clusters.items():
                file = Path(folder) / f"{cluster.config.name}.yaml"
                file.write_text(yaml.safe_dump(cluster.config.model_dump(mode="json")))
                starting[name] = subprocess.Popen(
                    [sys.executable, "-m", "cluster.cli", "up", str(file)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            for name, process in starting.items():
                told, _ = process.communicate(timeout=300)
                if process.returncode:
                    raise RuntimeError(f"{name} did not start:\n{told}")
            yield clusters
        finally:
            for process in starting.values():
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            for cluster in clusters.values():
                cluster.down()
