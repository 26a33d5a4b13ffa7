"""A chat request's messages, tools and template arguments, as vLLM hands them to a template.

Follows vllm/renderers/chat_utils.py and hf.py (0.32) for text; tests hold it against them.
vLLM's own code is not imported: it costs a router four seconds and 470 MiB. Whatever else a
request brings (pictures, sounds, vendors' own parts) raises `NotTokenized`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from router.errors import NotTokenized

ContentFormat = Literal["string", "openai"]
"""Whether a template takes a message's content as one text or as a list of parts."""

Message = dict[str, Any]

_TEXT_OF_PART: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_BILLING_HEADER: Final = "x-anthropic-billing-header"
_RESERVED: Final = frozenset(
    {"chat_template", "tokenize", "tools", "messages", "conversation", "conversations"}
    | {"return_dict", "padding", "truncation", "max_length", "return_tensors"}
    | {"tokenizer_kwargs", "return_assistant_tokens_mask"}
)
"""Template arguments of these names mean something to transformers, not to the template."""


@dataclass(frozen=True)
class Chat:
    """What a chat template is rendered from.

    Attributes:
        messages: In order.
        tools: As the template sees them, or None.
        arguments: The template's other arguments.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    arguments: dict[str, Any]


def chat_of(body: Mapping[str, Any], content_format: ContentFormat, knows_developer: bool) -> Chat:
    """A chat request's body, taken apart.

    Args:
        body: As the client sent it.
        content_format: What the template takes.
        knows_developer: Whether the template has the role `developer`.

    Raises:
        NotTokenized: The engine may make something else of it, or refuse it.
    """
    messages = [_message(message, content_format) for message in _objects(body["messages"])]
    if not knows_developer and any(message["role"] == "developer" for message in messages):
        messages = _without_developer(messages)
    return Chat(messages, _tools(body.get("tools")), _arguments(body))


def _objects(values: Any) -> Iterable[Mapping[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise NotTokenized("message")
    return values


def _message(message: Mapping[str, Any], content_format: ContentFormat) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise NotTokenized("message")
    texts = _texts(message.get("content"))
    if role == "system":
        texts = [left for text in texts if (left := _without_billing(text)) is not None]
    as_parts = content_format == "openai" and role != "tool"
    rendered: Message = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts]
        if as_parts
        else "\n".join(texts),
    }
    if role == "assistant":
        if calls := message.get("tool_calls"):
            rendered["tool_calls"] = [_tool_call(call) for call in _objects(calls)]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            rendered["reasoning"] = rendered["reasoning_content"] = reasoning
    if role == "tool" and "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            rendered[key] = message[key]
    if role == "developer":
        rendered["tools"] = message.get("tools")
    return rendered


def _texts(content: Any) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise NotTokenized("message")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_OF_PART:
            raise NotTokenized("media")
        text = part.get(_TEXT_OF_PART[kind])
        if text is None and kind in ("text", "refusal"):
            continue
        if not isinstance(text, str):
            raise NotTokenized("message")
        texts.append(text)
    return texts


def _without_billing(text: str) -> str | None:
    """vLLM takes off a line that changes with every request of one client."""
    if not text.startswith(_BILLING_HEADER):
        return text
    return text.partition("\n")[2] or None


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in the order of OpenAI's types, arguments as an object."""
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise NotTokenized("message")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    normal: dict[str, Any] = {}
    if "id" in call:
        normal["id"] = call["id"]
    normal["function"] = {"arguments": arguments, "name": function.get("name")}
    if "type" in call:
        normal["type"] = call["type"]
    return normal


def _without_developer(messages: list[Message]) -> list[Message]:
    """Developers' messages become the system's, and all of these one at the front."""
    renamed = [
        {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [message for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0] is system[0]:
        return renamed
    texts = [
        content
        if isinstance(content := message["content"], str)
        else "\n".join(part["text"] for part in content)
        for message in system
    ]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools with the fields and the order of vLLM's `ChatCompletionToolsParam`."""
    if tools is None:
        return None
    normal = []
    for tool in _objects(tools):
        function = tool.get("function")
        if not isinstance(function, dict):
            raise NotTokenized("message")
        # Both are in the dump even where the client left them out.
        fields = {
            "name": function.get("name"),
            "description": function.get("description"),
            "parameters": function.get("parameters"),
        }
        if (strict := function.get("strict")) is not None:
            fields["strict"] = strict
        defer = function.get("defer_loading", tool.get("defer_loading"))
        if defer is not None:
            fields["defer_loading"] = defer
        rendered = {"type": tool.get("type", "function"), "function": fields}
        if tool.get("defer_loading") is not None:
            rendered["defer_loading"] = tool["defer_loading"]
        normal.append(rendered)
    return normal


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict) or own.keys() & _RESERVED:
        raise NotTokenized("template")
    effort = body.get("reasoning_effort")
    given = {
        "add_generation_prompt": body.get("add_generation_prompt", True),
        "continue_final_message": body.get("continue_final_message", False),
        "documents": body.get("documents"),
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in own:
        given["enable_thinking"] = effort != "none"
    return own | {key: value for key, value in given.items() if value not in (None, "auto")}
