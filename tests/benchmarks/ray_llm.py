"""Ray Serve LLM as it comes, on its classic path: its own proxy, ingress and prefix router.

Its `PrefixCacheAffinityRouter` learns on that path only. Engines are given what ours are given.
Run as a command it starts all of this for a config, prints the address and ends with its input.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ray_head import serving

from cluster.environment import FAST_PATH
from configs import ClusterConfig, load_config

OURS = ("worker_extension_cls", "scheduling_policy")
"""Engine arguments that belong to paceline."""


@contextmanager
def running_ray_llm(config: ClusterConfig) -> Iterator[str]:
    """Starts it in processes of its own; gives its address."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        with subprocess.Popen(
            [sys.executable, __file__, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        ) as process:
            assert process.stdout is not None
            while not (told := process.stdout.readline()).startswith("http"):
                if not told:
                    raise RuntimeError("Ray Serve LLM did not start")
            yield told.strip()


def application(config: ClusterConfig) -> Any:
    """Its application for this config."""
    from ray.serve.config import RequestRouterConfig
    from ray.serve.llm import LLMConfig, build_openai_app

    from cluster.app import llm_config

    ours = llm_config(config)
    engine = {name: value for name, value in ours.engine_kwargs.items() if name not in OURS}
    router = "ray.serve.llm.request_router:PrefixCacheAffinityRouter"
    theirs = LLMConfig(
        model_loading_config=ours.model_loading_config,
        engine_kwargs=engine,
        accelerator_config=ours.accelerator_config,
        placement_group_config=ours.placement_group_config,
        runtime_env={"env_vars": ours.runtime_env["env_vars"]},
        deployment_config={
            "num_replicas": config.verifiers.replicas,
            "ray_actor_options": {"num_cpus": 0},
            "request_router_config": RequestRouterConfig(request_router_class=router),
        },
    )
    # The verifiers have all cores, and the ingress needs a free one by default.
    ingress = {"ray_actor_options": {"num_cpus": 0}}
    return build_openai_app({"llm_configs": [theirs], "ingress_deployment_config": ingress})


def main() -> None:
    """See the module's docstring."""
    config = load_config(Path(sys.argv[1]))
    classic = dict.fromkeys(FAST_PATH, "0") | {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    with serving(config, classic):
        from ray import serve

        serve.run(application(config), name="ray-llm", route_prefix="/")
        print(f"http://{config.ports.host}:{config.ports.http}", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()
