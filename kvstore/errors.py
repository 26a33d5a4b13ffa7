"""What can go wrong with the cluster's memory.

StoreError
├── StoreUnavailable     Redis can't be reached, refuses us, or answers too late
└── InvalidReport        a worker says of itself what others would leave out
"""


class StoreError(Exception):
    """Base of everything raised on purpose in this room."""


class StoreUnavailable(StoreError):
    """Redis can't be reached, refuses us, or answers too late.

    Args:
        where: Host and port, never a password.
        reason: What happened.
        remedy: What a person can do about it.
    """

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(where, reason, remedy)
        self.where = where
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"Redis at {self.where}: {self.reason}; {self.remedy}"


class InvalidReport(StoreError):
    """A worker says of itself what others would leave out.

    Args:
        worker_id: Whose report it is.
        reason: What is wrong with it.
    """

    def __init__(self, worker_id: str, reason: str) -> None:
        super().__init__(worker_id, reason)
        self.worker_id = worker_id
        self.reason = reason

    def __str__(self) -> str:
        return f"the report of {self.worker_id!r} would be left out by its readers: {self.reason}"
