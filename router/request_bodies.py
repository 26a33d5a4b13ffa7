"""Keeps a hostile body from being a routing failure.

Ray's router parses each body before our policy sees it, and takes what it can't
parse for a body without a routing key. JSON nested too deeply raises another error
than the two it expects, and the client would get a plain 503. The front door
refuses such a body properly; the router has only to send it there.
"""

from typing import Any

from ray.llm._internal.serve.core.ingress import router as ray_router

_parse = ray_router._parse_request_body


def tolerate_deep_nesting() -> None:
    """Makes the router of this process treat too deep a body like any that can't be parsed."""
    ray_router._parse_request_body = _parse_or_none


def _parse_or_none(body: bytes) -> dict[str, Any] | None:
    try:
        parsed: dict[str, Any] | None = _parse(body)
    except RecursionError:
        return None
    return parsed
