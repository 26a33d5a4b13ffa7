"""Waiting for what has to happen soon."""

import time
from collections.abc import Callable
from typing import Any, Final

SOON_S: Final = 30.0


def until(true: Callable[[], Any], within_s: float = SOON_S, poll_s: float = 0.01) -> Any:
    """What `true` gives once it is true; fails after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline_s, f"it did not happen in {within_s:g} s"
        time.sleep(poll_s)
    return found
