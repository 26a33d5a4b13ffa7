"""What goes to a Ray cluster that somebody else started is what the cluster's YAML says."""

import shlex
from pathlib import Path

import pytest
from ray.serve.schema import ServeDeploySchema

from cluster.environment import FAST_PATH, require_fast_path
from cluster.leave import node_of, replicas
from cluster.serve_config import environment_lines, serve_config
from configs import load_config, parse_config

FILES = sorted(Path("configs").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_application_gets_the_whole_config(file: Path) -> None:
    """Parsed again, the arguments are the config of the file, and Serve takes the rest."""
    config = load_config(file)
    deployed = serve_config(config)
    ServeDeploySchema.model_validate(deployed)
    (application,) = deployed["applications"]
    assert parse_config(application["args"], "args") == config
    assert deployed["http_options"] == {"host": config.ports.host, "port": config.ports.http}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shell_that_reads_the_variables_may_deploy(file: Path) -> None:
    """Every line is an export, and together they are the direct path."""
    config = load_config(file)
    found = {}
    for line in environment_lines(config).splitlines():
        export, assignment = shlex.split(line)
        assert export == "export"
        name, _, value = assignment.partition("=")
        found[name] = value
    require_fast_path(config, found)
    assert set(FAST_PATH) <= set(found)


def test_replicas_are_known_by_what_they_call_themselves() -> None:
    """A leaving node waits for Serve's replicas, and for no other process of Ray."""
    titles = [
        "ray::ServeReplica:paceline:Verifier:smollm2",
        "ray::ServeController",
        "python -m cluster.leave 60",
        "ray::IDLE",
    ]
    assert list(replicas(titles)) == titles[:1]


def test_a_node_is_known_by_its_raylet() -> None:
    """By what stands in its command line; without one there is nothing to leave."""
    titles = ["ray::IDLE", "/x/ray/core/src/ray/raylet/raylet --a=b --node_id=b755d7 --c=d"]
    assert node_of(titles) == "b755d7"
    with pytest.raises(ConnectionError):
        node_of(titles[:1])
