"""Clients that ask again as soon as they are answered."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def asking(clients: int, ask: Callable[[int], object]) -> Iterator[None]:
    """So many of them ask until the block ends; their last answers are waited for, and what any
    of them raised is raised here.

    Args:
        clients: How many.
        ask: Asks once; gets a number that no other ask gets.
    """
    over = threading.Event()

    def ask_on(first: int) -> None:
        number = first
        while not over.is_set():
            ask(number)
            number += clients

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(ask_on, n) for n in range(clients)]
        try:
            yield
        finally:
            over.set()
        for one in running:
            one.result()
