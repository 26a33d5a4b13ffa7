"""What can be wrong with a config, and with the secrets it names.

ConfigError            one file cannot be used; carries every problem found in it
  .problems            each a ConfigProblem: file, key, reason
SecretError            a secret that a config names cannot be had
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConfigProblem:
    """One thing that must change before a cluster can run from this file.

    `key` is dotted, list items by index (`model.adapters[0].name`), and empty where
    the whole file is meant.
    """

    file: str
    key: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self.reason) if part)


class ConfigError(Exception):
    """A config file that cannot be used, with every problem found in it."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class SecretError(Exception):
    """A secret that is missing, empty, or lies open for other users of the machine."""
