"""What can go wrong in the router. Nothing of it reaches a client.

RouterError
└── NotTokenized    the tokens of a request can't be known here; it is routed by load
"""


class RouterError(Exception):
    """Base of everything raised on purpose in this room."""


class NotTokenized(RouterError):
    """The tokens of a request can't be known here.

    Args:
        reason: One of a few words, for a metric: `no_prompt`, `media`, `message`, `template`,
            `truncated`, `tokenizer`, `model`, `not_ready`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
