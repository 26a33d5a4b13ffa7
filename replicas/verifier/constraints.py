"""What an answer must look like: one constraint, and not a large one.

vLLM turns schemas into grammars on the event loop that serves every stream of the
verifier, and prints its own objects where a request asks for two constraints.
"""

from typing import Any

from replicas.errors import InvalidRequest
from replicas.verifier.request_body import Body, encode

MAX_CONSTRAINT_BYTES = 64 << 10
"""JSON size of one schema, grammar, regex, list of choices or tool."""

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def check_constraints(body: Body) -> None:
    """Looks at `structured_outputs`, `response_format` and their likes, all objects.

    Raises:
        InvalidRequest: One is too large, has no constraint, or excludes another.
    """
    structured = body.get("structured_outputs")
    response_format = body.get("response_format") or {}
    if structured is not None:
        if sum(structured.get(kind) is not None for kind in KINDS) != 1:
            raise _wrong("structured_outputs", f"must have exactly one of {', '.join(KINDS)}")
        if response_format.get("type", "text") != "text":
            raise _wrong("structured_outputs", "cannot stand beside `response_format`")
    if response_format.get("type") == "json_schema":
        wrapper = response_format.get("json_schema")
        if not isinstance(wrapper, dict) or not isinstance(wrapper.get("schema"), dict):
            raise _wrong("response_format.json_schema.schema", "must be an object")
    for name in ("structured_outputs", "response_format", "text", "output_config"):
        _check_size(body.get(name), name)
    for index, tool in enumerate(body.get("tools") or ()):
        _check_size(tool, f"tools[{index}]")


def _check_size(value: Any, path: str) -> None:
    if value is not None and len(encode(value)) > MAX_CONSTRAINT_BYTES:
        raise _wrong(path, f"is larger than the {MAX_CONSTRAINT_BYTES} bytes it may have")


def _wrong(path: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}` {reason}.", path, "invalid_value")
