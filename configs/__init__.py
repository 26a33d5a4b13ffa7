"""What was asked for: one schema, one loader, the checks, example clusters."""

from configs.checks import check
from configs.errors import ConfigError, ConfigProblem, SecretError
from configs.facts import gather_facts
from configs.load import load_config, parse_config
from configs.schema import ClusterConfig
from configs.secrets import read_secret

__all__ = [
    "ClusterConfig",
    "ConfigError",
    "ConfigProblem",
    "SecretError",
    "check",
    "gather_facts",
    "load_config",
    "parse_config",
    "read_secret",
]
