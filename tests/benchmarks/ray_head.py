"""A Ray and a Serve of a benchmark's own, in this process and its children."""

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.environment import haproxy_folder, local_environment
from cluster.parts import start_ray
from cluster.processes import RUN_ID_VARIABLE, Run, end_processes
from configs import ClusterConfig


@contextmanager
def serving(config: ClusterConfig, environment: Mapping[str, str]) -> Iterator[None]:
    """Starts them as a local cluster has them; nothing of it is left at the end.

    Args:
        config: Its ports, and what Ray is given.
        environment: Over what a local cluster sets.
    """
    with tempfile.TemporaryDirectory(prefix="head-") as root, ExitStack() as stack:
        folder = Path(root) / "run"
        for part in ("ray", "logs", "tmp"):
            (folder / part).mkdir(parents=True)
        os.environ.update({**local_environment(config, folder), **environment})
        haproxy_folder(folder).mkdir()
        started: list[int] = []
        run_id = uuid.uuid4().hex
        stack.callback(lambda: end_processes(Run(run_id, frozenset(started))))
        start_ray(config, folder, {**os.environ, RUN_ID_VARIABLE: run_id}, started.append)
        import ray
        from ray import serve

        ray.init(f"127.0.0.1:{config.ports.ray}", log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        host, port = config.ports.host, config.ports.http
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
        yield
