"""What a request says of drafting itself, and the class it belongs to.

`vllm_xargs.paceline_speculation` is `auto` (we decide), `off`, or a number of tokens. The front
door checks it (`request_checks.py`) and alone sets the class; here they are read back
inside the engine, from vLLM's sampling parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from configs.request_class import BATCH, INTERACTIVE
from replicas.verifier.draft_costs import AUTO

SPECULATION: Final = "paceline_speculation"
CLASS: Final = "paceline_class"
LOW: Final = BATCH
"""The class that yields first."""


@dataclass(frozen=True)
class Wish:
    """What one request wants.

    Attributes:
        request_class: `interactive` or `batch`.
        length: Draft tokens; `AUTO` leaves it to the governor.
    """

    request_class: str
    length: int


def parsed(value: object, longest: int) -> int | None:
    """Draft tokens that `paceline_speculation` asks for, `AUTO`, or None where it is wrong."""
    if value == "auto":
        return AUTO
    if value == "off":
        return 0
    if type(value) is int and 0 <= value <= longest:
        return value
    return None


def wish_of(params: Any, of_class: Mapping[str, int], longest: int) -> Wish:
    """What these sampling parameters of vLLM say; else what their class has.

    Args:
        params: vLLM's `SamplingParams`, or None.
        of_class: Draft tokens or `AUTO`, by class.
        longest: Draft tokens that there may be at most.
    """
    told = getattr(params, "extra_args", None) or {}
    request_class = class_told(params)
    if request_class not in of_class:
        request_class = INTERACTIVE
    length = parsed(told.get(SPECULATION), longest)
    # `auto` is what a request has that says nothing: its class decides, and then the governor.
    if length is None or length == AUTO:
        length = min(of_class.get(request_class, AUTO), longest)
    return Wish(request_class, length)


def class_told(params: Any) -> str:
    """The class that the front door wrote into these sampling parameters of vLLM."""
    told = getattr(params, "extra_args", None) or {}
    return BATCH if told.get(CLASS) == BATCH else INTERACTIVE


def class_lengths(of_class: Mapping[str, str | int]) -> tuple[tuple[str, int], ...]:
    """Draft tokens by class, from the words of the config."""
    words = {"auto": AUTO, "off": 0}
    return tuple(
        (name, words[wish] if isinstance(wish, str) else wish) for name, wish in of_class.items()
    )
