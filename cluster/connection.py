"""A connection of this process to a cluster's Ray.

Apart from `cluster/deploy.py`, whose imports take five seconds. Set the environment first
(`LocalCluster.adopt_environment`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import ray

from configs.schema import ClusterConfig


@contextmanager
def connected(config: ClusterConfig) -> Iterator[None]:
    """Connects this process to the config's Ray cluster for a while."""
    ray.init(
        address=config.ray.address or f"127.0.0.1:{config.ports.ray}",
        namespace="serve",
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()
