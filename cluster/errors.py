"""What can go wrong while a cluster is put up or looked at.

    ClusterError             told to a person as it is, without a traceback
      FastPathMissing        this process lacks variables of the direct path
      ModelError             a built-in model could not be made
      PartMissing            a program is not installed
      PartFailed             a program did not start; carries its last words
      PortsTaken             ports in use, with key and owner
      AlreadyStarting        another `paceline` command is at work on this cluster
      OtherClusterRuns       a cluster of this name runs from another config
      NotRunning             a command needs a running cluster
      DeployFailed           the application is not ready; carries the replica's own error
      NoProfile              there is no profile to plan from
      RequestFailed          the API refused a question or broke off its answer

All arguments go to `super().__init__` by position, so that the errors survive a
trip between Ray processes.
"""


class ClusterError(Exception):
    """Says what happened, where, and what to do."""


class FastPathMissing(ClusterError):
    """The direct path is off in this process."""

    def __init__(self, missing: list[str]) -> None:
        super().__init__(missing)
        self.missing = missing

    def __str__(self) -> str:
        return (
            "the direct path from HAProxy to the verifiers is off in this process; set before "
            f"Ray starts, on every node: {' '.join(self.missing)}"
        )


class ModelError(ClusterError):
    """A built-in model could not be made."""


class PartMissing(ClusterError):
    """A program is not installed."""

    def __init__(self, program: str, remedy: str) -> None:
        super().__init__(program, remedy)
        self.program, self.remedy = program, remedy

    def __str__(self) -> str:
        return f"{self.program} is not on the PATH: {self.remedy}"


class PartFailed(ClusterError):
    """A program did not start."""

    def __init__(self, part: str, last_words: str) -> None:
        super().__init__(part, last_words)
        self.part, self.last_words = part, last_words

    def __str__(self) -> str:
        return f"{self.part} did not start. Its last words:\n{self.last_words}"


class PortsTaken(ClusterError):
    """Ports of the config are in use."""

    def __init__(self, taken: list[str]) -> None:
        super().__init__(taken)
        self.taken = taken

    def __str__(self) -> str:
        listing = "\n  ".join(self.taken)
        return f"ports of the config are in use; free them or choose others:\n  {listing}"


class AlreadyStarting(ClusterError):
    """Another process starts or stops the same cluster."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"another `paceline` command is starting or stopping `{self.name}`; wait for it"


class OtherClusterRuns(ClusterError):
    """A cluster of this name runs from a different config."""

    def __init__(self, name: str, config_file: str) -> None:
        super().__init__(name, config_file)
        self.name, self.config_file = name, config_file

    def __str__(self) -> str:
        return (
            f"a cluster named `{self.name}` runs from another config ({self.config_file}); "
            f"end it with `paceline down {self.name}`, or give this one another `name` and ports"
        )


class NotRunning(ClusterError):
    """No cluster is up."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what}; start one with `paceline up configs/local.yaml`"


class DeployFailed(ClusterError):
    """The application did not get ready."""


class RequestFailed(ClusterError):
    """The API refused a question or broke off its answer."""


class NoProfile(ClusterError):
    """There is no profile to plan from."""
