"""What a body says of a request besides its prompt: its session, its class."""

from collections.abc import Mapping
from typing import Any, Final

INTERACTIVE: Final = "interactive"
BATCH: Final = "batch"
"""Requests that give way to others."""
_PATIENT_TIERS: Final = frozenset({"flex", "batch"})
_LONGEST_SESSION: Final = 256


def session_of(body: Mapping[str, Any]) -> str:
    """The name that a client gives to what belongs together; empty where it gives none.

    OpenAI's `prompt_cache_key` says which requests begin alike.
    """
    key = body.get("prompt_cache_key")
    return key[:_LONGEST_SESSION] if isinstance(key, str) else ""


def class_of(body: Mapping[str, Any]) -> str:
    """`batch` where the client says by OpenAI's `service_tier` that it can wait."""
    return BATCH if body.get("service_tier") in _PATIENT_TIERS else INTERACTIVE
