"""Which request headers count, and which the engine must never see.

Headers are ASGI's: pairs of bytes, names in lower case.
"""

import re
from collections.abc import Iterable

from replicas.errors import InvalidRequest, NotAuthenticated

Headers = list[tuple[bytes, bytes]]

PRIORITY = b"x-vllm-priority"

STRIPPED = {
    b"authorization": "the key ends here; nobody behind needs or logs it",
    b"x-api-key": "the key, as Anthropic's clients send it",
    PRIORITY: "vLLM: order in the engine's queue; the server sets it",
    b"x-data-parallel-rank": "vLLM: pins the request to one rank",
    b"x-session-id": "vLLM: goes into KV events",
    b"endpoint-load-metrics-format": "vLLM: answers with the load that all tenants make",
}
STRIPPED_PREFIXES = {
    b"x-serve-router-": "Ray: from the router to the replica, prompt tokens among them",
    b"x-amzn-sagemaker-": "vLLM's SageMaker layer: sessions and adapters",
}

MULTIPLEXED_MODEL = b"serve-multiplexed-model-id"
"""Ray has acted on this header before any middleware: it loads an adapter by name."""

ROUTE = b"x-serve-router-paceline-route"
"""From the router: why the request came to this verifier."""
EXPLAINED = b"x-paceline-route"
"""The same, to the client, where that is wanted."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_BEARER = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The API key of `Authorization: Bearer KEY` or `x-api-key: KEY`.

    Raises:
        NotAuthenticated: There is none, or there are two that differ.
    """
    keys = set()
    for name, value in headers:
        if name == b"authorization":
            bearer = _BEARER.fullmatch(value)
            keys.add(bearer[1] if bearer else b"")
        elif name == b"x-api-key":
            keys.add(value)
    if not keys:
        raise NotAuthenticated("No API key. Send it as `Authorization: Bearer KEY`.")
    if len(keys) > 1:
        raise NotAuthenticated("More than one API key. Send one, in one header.")
    return keys.pop()


def declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Bytes that the body is said to have; None where it comes in chunks of its own making."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body follows."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )


def check_headers(headers: Iterable[tuple[bytes, bytes]], needs_json: bool) -> None:
    """Refuses what stripping cannot undo, and bodies that are not JSON.

    Raises:
        InvalidRequest: The adapter is named in a header, or the media type is another.
    """
    media_type = b""
    for name, value in headers:
        if name.replace(b"_", b"-") == MULTIPLEXED_MODEL:
            raise InvalidRequest("Adapters are named in `model`, not in a header.", "model")
        if name == b"content-type":
            media_type = value.partition(b";")[0].strip().lower()
    if needs_json and media_type != b"application/json":
        raise InvalidRequest("The body must have `Content-Type: application/json`.")


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The request's id, where it can stand in a log line and an answer."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return None


def explanation(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What the router says of its decision, as a header of the answer."""
    return [(EXPLAINED, value) for name, value in headers if name == ROUTE]


def forwarded(
    headers: Iterable[tuple[bytes, bytes]], body: bytes | None, priority: int = 0
) -> Headers:
    """The headers that vLLM sees.

    Args:
        headers: As the client sent them.
        body: What took the place of the client's body; None where it stays.
        priority: Place in the engine's queue; the lowest is next, and 0 is not told.
    """
    kept = [(name, value) for name, value in headers if _is_passed_on(name, value)]
    if priority:
        kept.append((PRIORITY, str(priority).encode()))
    if body is None:
        return kept
    kept = [pair for pair in kept if pair[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(len(body)).encode())]


def _is_passed_on(name: bytes, value: bytes) -> bool:
    if name == b"x-request-id":
        return _REQUEST_ID.fullmatch(value) is not None
    return name not in STRIPPED and not name.startswith(tuple(STRIPPED_PREFIXES))
