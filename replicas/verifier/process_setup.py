"""Keeps the log of a verifier whole, although vLLM configures Python's logging anew.

vLLM does so when it is imported and again when an engine starts, and each time every
handler there is gets closed: Serve's log of the replica would end at its first line.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler

ROOMS = ("replicas", "router", "kvstore", "configs")


def set_up() -> None:
    """Imports vLLM before Serve opens its log; named in the verifier's runtime environment."""
    import vllm.logger

    vllm.logger.init_logger(__name__)


def log_with_serve() -> None:
    """Sends our rooms' lines where Serve keeps this replica's own."""
    serve_logger = logging.getLogger("ray.serve")
    for room in ROOMS:
        room_logger = logging.getLogger(room)
        room_logger.setLevel(logging.INFO)
        room_logger.handlers = serve_logger.handlers
        room_logger.propagate = False


@contextmanager
def serve_log_kept() -> Iterator[None]:
    """Gives Serve's handlers their files back after a while in which vLLM closes them."""
    handlers = logging.getLogger("ray.serve").handlers
    targets = [
        (handler, handler.target) for handler in handlers if isinstance(handler, MemoryHandler)
    ]
    try:
        yield
    finally:
        for handler, target in targets:
            handler.setTarget(target)
