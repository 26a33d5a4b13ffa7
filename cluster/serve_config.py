"""What a Ray cluster that is not `paceline up`'s needs from a cluster's YAML.

python -m cluster.serve_config FILE                 the Serve config, for `serve deploy`
python -m cluster.serve_config FILE --environment   the variables of every Ray process
"""

import argparse
import shlex
import sys
from typing import Any

import yaml

from cluster.autoscaling import application_policy
from cluster.environment import fast_path_environment
from configs import ConfigError, load_config
from configs.schema import ClusterConfig


def serve_config(config: ClusterConfig) -> dict[str, Any]:
    """The Serve config of one cluster: where HAProxy listens, and the application.

    Holds only what the config itself says, so that it reads like the cluster's YAML; relative
    paths are full ones.
    """
    application = {
        "name": config.name,
        "import_path": "cluster.app:build_app",
        "route_prefix": "/",
        "args": config.model_dump(mode="json", exclude_unset=True),
    }
    if config.autoscaling is not None:
        application["autoscaling_policy"] = application_policy(config)
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": config.ports.host, "port": config.ports.http},
        "applications": [application],
    }


def environment_lines(config: ClusterConfig) -> str:
    """The variables as a shell takes them, one a line."""
    variables = fast_path_environment(config)
    if config.hardware.kind == "gpu":
        variables["VLLM_USE_RAY_V2_EXECUTOR_BACKEND"] = "1"
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())
    )


def main() -> None:
    """Prints what is asked for, or what is wrong with the file."""
    parser = argparse.ArgumentParser(prog="python -m cluster.serve_config")
    parser.add_argument("file", help="a cluster's YAML file")
    parser.add_argument("--environment", action="store_true", help="variables instead")
    asked = parser.parse_args()
    try:
        config = load_config(asked.file)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    if asked.environment:
        sys.stdout.write(environment_lines(config))
    else:
        sys.stdout.write(yaml.safe_dump(serve_config(config), sort_keys=False))


if __name__ == "__main__":
    main()
