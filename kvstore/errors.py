"""What can go wrong with the cluster's memory.

StoreError
├── StoreUnavailable     Redis can't be reached, refuses us, or answers too late
│   └── FolderUnavailable  the same of a folder for KV blocks
├── InvalidReport        a worker says of itself what others would leave out
├── KeysFileError        a keys file cannot be used; names its line, never a key
├── NoClusterToken       the secret by which the cluster's parts know each other
├── MalformedMessage     what a part of the cluster says cannot be read, or must not be believed
├── InvalidRecord        an entry of the n-gram exchange, or a corpus, is not what it should be
└── CorpusRefused        a corpus has no room, no name or no text
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


class FolderUnavailable(StoreUnavailable):
    """A folder for KV blocks can't be read or written; arguments as for `StoreUnavailable`."""

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}; {self.remedy}"


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


class KeysFileError(StoreError):
    """A keys file that cannot be used.

    Args:
        line: Line number from 1, or 0 where the whole file is meant.
        reason: What is wrong; never quotes the file.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        where = f"line {self.line} of the keys file" if self.line else "the keys file"
        return f"{where}: {self.reason}"


class NoClusterToken(StoreError):
    """The secret by which the cluster's parts know each other can't be had.

    Args:
        reason: What is wrong with it; never quotes it.
        remedy: What a person can do.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"no cluster token: {self.reason}; {self.remedy}"


class MalformedMessage(StoreError):
    """A message between parts of the cluster that cannot be read or believed.

    Args:
        what: Which check failed, a word: `frames`, `size`, `version`, `token` or `shape`; for
            drafts also `tokens`, `length` or `vocabulary`, and for answers `step`, `session` or
            `base`.
        reason: What is wrong.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class InvalidRecord(StoreError):
    """An entry of the n-gram exchange, or a corpus, is not what it should be."""


class CorpusRefused(StoreError):
    """A corpus has no room, no name or no text. The message says which, and what to do."""
