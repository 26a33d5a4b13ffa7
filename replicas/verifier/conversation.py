"""Messages and tools: that vLLM can take them apart, and what they may name.

vLLM validates the parts of a message only while it renders them, some by assertion,
and drops the tools that it would have to run itself without a word.
"""

from typing import Any

from replicas.errors import InvalidRequest
from replicas.verifier.request_body import Body
from replicas.verifier.routes import BodyKind

CLIENTS_TOOLS = ("function", "custom", "namespace")
"""Tools of a responses request that the client runs."""


def check_conversation(body: Body, kind: BodyKind) -> None:
    """Looks at every message and every tool; both are arrays of objects.

    Raises:
        InvalidRequest: A part of a message is neither a text nor an object, brings a
            tensor, or names an entry of the media cache, which all tenants share; or a
            tool is none that a client could run.
    """
    if body.get("messages") == []:
        raise _wrong("messages", "must not be empty")
    for index, message in enumerate(body.get("messages") or ()):
        path = f"messages[{index}]"
        if not isinstance(message.get("tool_calls") or [], list):
            raise _wrong(f"{path}.tool_calls", "must be an array")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            _check_part(part, f"{path}.content")
    for index, tool in enumerate(body.get("tools") or ()):
        if kind == "chat":
            _check_function(tool.get("function"), f"tools[{index}].function")
        if kind == "responses" and tool.get("type") not in CLIENTS_TOOLS:
            raise _wrong(f"tools[{index}].type", "is not supported here: the client runs its tools")


def _check_part(part: Any, path: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict):
        raise _wrong(path, "must be a text, or an array of texts and objects")
    if not isinstance(part.get("text") or "", str):
        raise _wrong(f"{path}.text", "must be a text")
    if part.get("uuid") is not None:
        raise _wrong(f"{path}.uuid", "is not supported here: all tenants share the media cache")
    kinds = (part.get("type"), *part)
    if any(isinstance(kind, str) and kind.endswith("_embeds") for kind in kinds):
        raise _wrong(path, "is not supported here: tensors from clients are not loaded")


def _check_function(function: Any, path: str) -> None:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(path, "must be an object with a `name`")


def _wrong(path: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}` {reason}.", path, "invalid_value")
