"""What a body says of a request besides its prompt and its class: its session."""

from collections.abc import Mapping
from typing import Any, Final

_LONGEST_SESSION: Final = 256


def session_of(body: Mapping[str, Any]) -> str:
    """The name that a client gives to what belongs together; empty where it gives none.

    OpenAI's `prompt_cache_key` says which requests begin alike.
    """
    key = body.get("prompt_cache_key")
    return key[:_LONGEST_SESSION] if isinstance(key, str) else ""
