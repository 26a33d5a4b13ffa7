"""Lets vLLM 0.32.0 start on a CPU where numba has been imported before.

vLLM looks through the attributes of every imported module and asks each for its `__dict__`.
Our n-gram index and LMCache bring numba, and numba's llvmlite an object that claims to have any
attribute: a function of its C library. What vLLM takes for a dict is none, and the engine does not
start.
"""

from typing import Any


def mend() -> None:
    """Has llvmlite's library answer for its functions only; twice does no harm."""
    from llvmlite.binding import ffi  # what is not mended must not be imported either

    kind: Any = type(ffi.lib)
    original = kind.__getattr__
    if getattr(original, "is_mended", False):
        return

    def function_of_library(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return original(self, name)

    function_of_library.is_mended = True  # type: ignore[attr-defined]
    kind.__getattr__ = function_of_library
