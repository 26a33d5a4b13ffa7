"""numba's decorator, with its cache where there is a folder for one.

A function with a signature is compiled when its module is imported, or loaded from the cache, so
that nothing waits for a compiler later on.
"""

from collections.abc import Callable
from typing import Any

import numba

from kvstore.llvmlite_mend import mend

mend()


def compiled(signature: str | None, *, nogil: bool = True, **options: Any) -> Callable[[Any], Any]:
    """Compiles a function; of several types where no signature is given.

    Args:
        signature: numba's, or None.
        nogil: Whether it releases the GIL.
        options: numba's, apart from these.
    """

    def compile_it(function: Any) -> Any:
        try:
            return numba.njit(signature, nogil=nogil, cache=True, **options)(function)
        except RuntimeError:  # no folder that can be written to
            return numba.njit(signature, nogil=nogil, **options)(function)

    return compile_it
