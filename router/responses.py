"""A request of OpenAI's responses API as the chat request that vLLM makes of it.

Follows vllm/renderers/online_renderer.py and entrypoints/openai/responses/utils.py (0.32) for
texts; tests hold it against them. Tools, reasoning items and calls raise `NotTokenized`.
"""

from collections.abc import Mapping
from typing import Any, Final

from router.errors import NotTokenized

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})


def chat_of_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request.

    Args:
        body: With `input`, as the client sent it.

    Raises:
        NotTokenized: The engine may make something else of it, or refuse it.
    """
    if body.get("truncation") not in (None, "disabled"):
        raise NotTokenized("truncated")
    if body.get("tools"):
        raise NotTokenized("template")
    asked, instructions = body["input"], body.get("instructions")
    messages: list[Any] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(asked, str):
        messages.append({"role": "user", "content": asked})
    elif isinstance(asked, list):
        messages += [_message(item) for item in asked]
    else:
        raise NotTokenized("message")
    reasoning = body.get("reasoning")
    return {
        "messages": messages,
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, Mapping) else None,
        # Here vLLM adds them, though the template has its own.
        "add_special_tokens": True,
    }


def _message(item: Any) -> dict[str, Any]:
    if (
        not isinstance(item, dict)
        or item.get("type", "message") != "message"
        or item.get("role") not in _ROLES
        # What the server answered is told back with an id, and an unfinished answer goes on.
        or item.keys() & {"id", "status"}
    ):
        raise NotTokenized("message")
    return {"role": item["role"], "content": item.get("content")}
