"""What can go wrong in a replica.

ReplicaError
├── NoDraftPort          a draft worker finds no port to listen on
├── WeightsChanged       weights were swapped while a verifier loaded them
├── UnknownVocabulary    nothing says how many tokens the model has
├── OtherVocabulary      a draft model's token ids mean something else than the target's
├── DraftModelFailed     a draft worker's model did not start
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


class WeightsChanged(ReplicaError):
    """Weights were swapped while a verifier loaded them, so nobody knows which it has.

    Args:
        source: Where they lie.
    """

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source

    def __str__(self) -> str:
        return f"the weights in {self.source} changed while they were loaded; they are loaded again"


class NoDraftPort(ReplicaError):
    """A draft worker finds no port to listen on.

    Args:
        host: Address it would listen on.
        first_port: Of the ports it may take.
        last_port: Of the ports it may take.
        reason: What the last of them said.
    """

    def __init__(self, host: str, first_port: int, last_port: int, reason: str) -> None:
        super().__init__(host, first_port, last_port, reason)
        self.host = host
        self.first_port = first_port
        self.last_port = last_port
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"a draft worker can't listen on {self.host}, ports {self.first_port} to "
            f"{self.last_port} ({self.reason}); mend `ports.host`, or widen "
            "`ports.drafts_from` to `ports.drafts_to`"
        )


class UnknownVocabulary(ReplicaError):
    """Nothing says how many tokens the model has.

    Args:
        source: Folder or hub id of the model.
        reason: Why it does not say so itself.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return f"the vocabulary of {self.source}: {self.reason}; say it in `model.shape`"


class OtherVocabulary(ReplicaError):
    """A draft model's token ids mean something else than the target's.

    Args:
        draft: Folder or hub id of the draft model.
        target: Of the target.
    """

    def __init__(self, draft: str, target: str) -> None:
        super().__init__(draft, target)
        self.draft = draft
        self.target = target

    def __str__(self) -> str:
        return (
            f"token ids of {self.draft} mean something else than those of {self.target}; a draft "
            "worker needs a model with the target's tokenizer"
        )


class DraftModelFailed(ReplicaError):
    """A draft worker's model did not start; the worker's log says why.

    Args:
        source: Folder or hub id of the model.
    """

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source

    def __str__(self) -> str:
        return f"the draft model {self.source} did not start; the draft worker's log says why"


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
