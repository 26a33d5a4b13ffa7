"""What a client is told when it gets no answer: one shape for every error.

`{"error": {"message", "type", "param", "code"}}`, as OpenAI's clients read it. On
Anthropic's paths the same object has Anthropic's word as `type` and `"type": "error"`
beside it, which is all their clients look for.
"""

from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from replicas.errors import (
    BodyTooLarge,
    BodyTooSlow,
    InvalidRequest,
    MethodNotServed,
    NoSuchModel,
    NoSuchRoute,
    NotAuthenticated,
    RequestRefused,
)

TYPES = {
    # status: (OpenAI's word, Anthropic's word)
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("server_error", "overloaded_error"),
}

INTERNAL = "The server failed on this request. It is not the request's fault."


@dataclass(frozen=True)
class Refusal:
    """How a `RequestRefused` looks from outside.

    Args:
        status: HTTP status.
        reason: Label of the metric.
        code: The error's `code` where the exception has none of its own.
    """

    status: int
    reason: str
    code: str | None = None


REFUSALS: dict[type[RequestRefused], Refusal] = {
    NotAuthenticated: Refusal(401, "not_authenticated", "invalid_api_key"),
    NoSuchRoute: Refusal(404, "no_such_route", "unknown_url"),
    MethodNotServed: Refusal(405, "method_not_served", "method_not_allowed"),
    NoSuchModel: Refusal(404, "no_such_model", "model_not_found"),
    BodyTooLarge: Refusal(413, "body_too_large", "request_too_large"),
    BodyTooSlow: Refusal(408, "body_too_slow", "request_timeout"),
    InvalidRequest: Refusal(400, "invalid_request"),
}


@dataclass(frozen=True)
class ApiError:
    """One error, before it is written in a client's dialect."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def to_json(self, for_anthropic: bool) -> bytes:
        """The body of the response."""
        fallback = TYPES[500 if self.status >= 500 else 400]
        types = TYPES.get(self.status, fallback)
        error = {
            "message": self.message,
            "type": types[1] if for_anthropic else types[0],
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode(
            {"type": "error", "error": error} if for_anthropic else {"error": error}
        )


def of_refusal(refused: RequestRefused) -> ApiError:
    """The error that a refusal of ours is."""
    refusal = REFUSALS[type(refused)]
    code = refused.code or refusal.code
    return ApiError(refusal.status, refused.message, refused.param, code)


def of_status(status: int) -> ApiError:
    """The error where nothing is known but the status."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(status, INTERNAL, code="internal_error")
    try:
        return ApiError(status, f"{HTTPStatus(status).phrase}.")
    except ValueError:
        return ApiError(status, "The request failed.")
