"""vLLM's errors in our shape.

vLLM keeps OpenAI's outline but not its words: `type` is a Python or HTTP name, `param`
may be a path through pydantic's unions or nothing, the message of a validation error
is a list of Python dicts with the user's own values in them, and some errors have
another outline altogether. Read in the handlers of
`vllm/entrypoints/serve/exception_handling/`, vLLM 0.32.
"""

import re
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

import msgspec

from replicas.verifier.openai_errors import ApiError, of_status

LONGEST_MESSAGE = 2000

_DETAIL = re.compile(
    r"""'loc':\ '(?P<loc>[^']*)',\ 'msg':\ (?:'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>[^"]*)")""",
    re.VERBOSE,
)
"""One entry of a validation error, as `validation_exception_handler` prints it."""

_SUFFIX = re.compile(r"\s*\((?:parameter=|value=).*\)\s*$", re.DOTALL)
"""What `VLLMValidationError` adds to its message."""

_UNION_BRANCH = re.compile(r"\.[A-Z]\w*")

_FIRST_WORD = re.compile(r"[`'\"]?(?:Parameter ['`])?([A-Za-z_]+(?:\.[a-z_]+)*)")

_PYTHON = re.compile(
    r"object (?:has no attribute|is not (?:subscriptable|iterable|callable))|indices must be"
    r"|unhashable type|unsupported operand|not supported between instances|positional argument"
    r"|[Ii]nteger (?:value )?(?:out of range|exceeds)|int too (?:large|big)|index out of range"
    r"|recursion depth|validation errors? for |Traceback|errors\.pydantic\.dev"
)
"""Texts of Python's own errors, which say nothing to a client."""

_CONTEXT_PARAMS = ("input_tokens", "input_text")
_PROMPT_FIELDS = ("messages", "prompt", "input")

_OPENAI_EVENT = b'data: {"error":'
_ANTHROPIC_EVENT = b"event: error\n"


def of_engine(status: int, body: bytes, fields: Collection[str]) -> ApiError:
    """The error that a response of vLLM's app is.

    Args:
        status: Its status, 400 or more.
        body: Its body, of whatever type.
        fields: Top-level fields that the request may have; `param` is one of them, a path
            into one, or null.
    """
    message, param = _outline(body)
    if details := [(_path(detail["loc"]), detail) for detail in _DETAIL.finditer(message)]:
        param = details[0][0]
        message = _reasons([detail for path, detail in details if path == param], param)
    message = _SUFFIX.sub("", message)[:LONGEST_MESSAGE]
    if status == HTTPStatus.INTERNAL_SERVER_ERROR or not message:
        return of_status(status)
    if _PYTHON.search(message):
        return ApiError(status, "The engine cannot process this request.")
    if message.startswith("The model `"):
        return ApiError(status, message, "model", "model_not_found")
    if param in _CONTEXT_PARAMS:
        prompt = next((field for field in _PROMPT_FIELDS if field in fields), None)
        return ApiError(status, message, prompt, "context_length_exceeded")
    return ApiError(status, message, _field(param, fields) or _named_in(message, fields))


def of_first_event(chunk: bytes, fields: Collection[str]) -> ApiError | None:
    """The error that a stream starts with, or None where it starts with an answer.

    vLLM checks some fields when the engine takes the request, after it has promised 200.

    Args:
        chunk: The first bytes of the stream.
        fields: As in `of_engine`.
    """
    if chunk.startswith(_ANTHROPIC_EVENT):
        # The reason is lost on its way through vLLM's Anthropic layer.
        return ApiError(400, "The engine refused this request; without `stream` it says why.")
    if not chunk.startswith(_OPENAI_EVENT):
        return None
    event = chunk.partition(b"\n")[0].removeprefix(b"data: ")
    try:
        status = msgspec.json.decode(event)["error"]["code"]
    except (msgspec.DecodeError, LookupError, TypeError):
        status = None
    if not isinstance(status, int) or not 400 <= status < 600:
        status = 500
    return of_engine(status, event, fields)


def _outline(body: bytes) -> tuple[str, Any]:
    """Message and `param` of an error body, empty where there are none."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip(), None
    if not isinstance(value, dict):
        return "", None
    error = value.get("error", value.get("detail"))
    if isinstance(error, dict):
        message = error.get("message")
        return message if isinstance(message, str) else "", error.get("param")
    return error if isinstance(error, str) else "", None


def _path(loc: str) -> str:
    """`body.messages.0.ChatCompletionUserMessageParam.content` as `messages.0.content`."""
    return _UNION_BRANCH.sub("", loc).removeprefix("body").removeprefix(".")


def _reasons(details: list[re.Match[str]], path: str) -> str:
    # A field of several types has one entry for each type that its value might have had.
    texts = [(detail["single"] or detail["double"] or "") for detail in details]
    plain = [text.replace("\\'", "'").removeprefix("Value error, ") for text in texts]
    what = "; or: ".join(dict.fromkeys(plain))
    return f"{path}: {what}" if path else what


def _field(param: Any, fields: Collection[str]) -> str | None:
    if not isinstance(param, str):
        return None
    return param if re.split(r"[.\[]", param)[0] in fields else None


def _named_in(message: str, fields: Collection[str]) -> str | None:
    """The field that a message begins with, as most of vLLM's do."""
    word = _FIRST_WORD.match(message)
    return _field(word[1], fields) if word else None
