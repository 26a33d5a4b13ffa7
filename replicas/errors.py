"""What can go wrong in a replica.

ReplicaError
├── NotInThisRelease     a config asks for a part that is not built yet
├── KeysFileError        a keys file cannot be used; names its line, never a key
├── ClientLeft           the client hung up before its request was whole
└── RequestRefused       the front door does not let a request in
    ├── NotAuthenticated     no API key, or one that nobody has
    ├── NoSuchRoute          nothing is served at this path
    ├── MethodNotServed      something is, but not with this method
    ├── NoSuchModel          neither the model nor one of its adapters
    ├── BodyTooLarge         more bytes than a request may have
    ├── BodyTooSlow          the body did not arrive in time
    └── InvalidRequest       the body, or a field of it, cannot be served

HTTP statuses stand in `replicas/verifier/openai_errors.py`.
"""


class ReplicaError(Exception):
    """Base of everything raised on purpose in this room."""


class NotInThisRelease(ReplicaError):
    """A config asks for something that is designed but not built.

    Args:
        key: Dotted key of the config.
        remedy: What to write instead.
    """

    def __init__(self, key: str, remedy: str) -> None:
        super().__init__(key, remedy)
        self.key = key
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.key}: not in this release; {self.remedy}"


class KeysFileError(ReplicaError):
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


class ClientLeft(ReplicaError):
    """The client hung up before its request was whole; nobody reads an answer."""


class RequestRefused(ReplicaError):
    """The front door does not let a request in.

    Args:
        message: What happened and what to do, for the client.
        param: The field of the body that is meant, if one is.
        code: A finer word than the error's own, in OpenAI's vocabulary.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.message = message
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.message


class NotAuthenticated(RequestRefused):
    """No API key, more than one, or one that nobody has."""


class NoSuchRoute(RequestRefused):
    """Nothing is served at this path."""


class MethodNotServed(RequestRefused):
    """The path is served, with another method."""


class NoSuchModel(RequestRefused):
    """`model` names neither the model nor one of its adapters."""


class BodyTooLarge(RequestRefused):
    """More bytes than a request may have."""


class BodyTooSlow(RequestRefused):
    """The body did not arrive in time."""


class InvalidRequest(RequestRefused):
    """The body, or a field of it, cannot be served."""
