"""Which cluster a command means: by its name, its YAML file, or as the only one that runs."""

from pathlib import Path

from pydantic import ValidationError

from cluster.errors import ClusterError, NotRunning
from cluster.local import LocalCluster
from cluster.state import RunState, all_states
from configs.checks import check as check_config
from configs.errors import ConfigError
from configs.facts import gather_facts
from configs.load import load_config
from configs.schema import ClusterConfig
from configs.sections.places import FoldersConfig


def checked(file: Path, secrets: bool) -> ClusterConfig:
    """The config of a file.

    Raises:
        ConfigError: It can't work; every problem is named. `secrets`: also where their files and
            variables are missing.
    """
    config = load_config(file)
    if problems := check_config(config, gather_facts(config), str(file), secrets=secrets):
        raise ConfigError(problems)
    return config


def config_named(which: str | None) -> ClusterConfig | None:
    """The config of the file that `which` names; None where it names none."""
    if which is None or Path(which).suffix not in (".yaml", ".yml"):
        return None
    return load_config(Path(which))


def clusters(which: str | None) -> list[LocalCluster]:
    """The clusters that `which` can mean, running or left behind."""
    if which is not None and (config := config_named(which)) is not None:
        cluster = LocalCluster(config, which)
        return [cluster] if cluster.folder.exists() else []
    states = all_states(FoldersConfig().run)
    return [
        LocalCluster(_config_of(folder, state), state.config_file)
        for folder, state in states.items()
        if which in (None, folder.name)
    ]


def _config_of(folder: Path, state: RunState) -> ClusterConfig:
    try:
        return ClusterConfig.model_validate(state.config)
    except ValidationError as error:
        raise ClusterError(
            f"{folder} is of a cluster that another version of paceline started; use that version"
        ) from error


def running_cluster(which: str | None) -> tuple[LocalCluster, RunState]:
    """The one that `which` means.

    Raises:
        NotRunning: None is, or it can mean several.
    """
    pairs = [(cluster, state) for cluster in clusters(which) if (state := cluster.running())]
    if not pairs:
        raise NotRunning(f"no cluster `{which}` runs" if which else "no cluster runs")
    if len(pairs) > 1:
        names = ", ".join(cluster.config.name for cluster, _ in pairs)
        raise NotRunning(f"several clusters run ({names}): name one")
    return pairs[0]
