"""What a person sees while the command works."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def progress() -> Iterator["Report"]:
    """A callback for steps: a spinner with seconds on a terminal, plain lines elsewhere."""
    report = Report()
    try:
        yield report
    except BaseException:
        report.close("failed")
        raise
    report.close("done")


class Report:
    """Tells each step, and how long it took when the next begins."""

    def __init__(self) -> None:
        self._step, self._started_s = "", 0.0
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __call__(self, step: str) -> None:
        self.close("done")
        self._step, self._started_s = step, time.monotonic()
        if console.is_terminal:
            self._live.start()
            self._task = self._live.add_task(step)
        else:
            console.print(f"  {step} ...")

    def close(self, word: str) -> None:
        """Ends the current step, if there is one."""
        if not self._step:
            return
        if console.is_terminal:
            self._live.remove_task(self._task)
            self._live.stop()
        console.print(f"  {self._step}: {word} ({time.monotonic() - self._started_s:.1f} s)")
        self._step = ""
