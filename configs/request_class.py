"""The classes of requests, and which one a body asks for."""

from collections.abc import Mapping
from typing import Any, Final

INTERACTIVE: Final = "interactive"
BATCH: Final = "batch"
"""Requests that give way to others."""
PRIORITIES: Final = {INTERACTIVE: 0, BATCH: 1}
"""Order in an engine's queue; the lowest is next."""
_PATIENT_TIERS: Final = ("flex", "batch")


def class_of(body: Mapping[str, Any]) -> str:
    """`batch` where the client says by OpenAI's `service_tier` that it can wait."""
    return BATCH if body.get("service_tier") in _PATIENT_TIERS else INTERACTIVE
