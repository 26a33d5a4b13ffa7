"""How fast a draft model generates, and so when a session may expect its next token."""

from typing import Final

RECENT: Final = 0.1
"""Weight of the latest step in each mean."""
STARTED_S: Final = 0.01
"""What a step is taken to last before any was seen."""


class Pace:
    """Means of one engine. Not for several threads."""

    def __init__(self) -> None:
        self.step_s = STARTED_S
        """Of a step that only decodes, seconds."""
        self.unread_s = 0.0
        """Of reading one prompt token more, seconds."""
        self.busy_s = 0.0
        """Time of all steps, seconds."""
        self._seen = False
        self._since_s: float | None = None
        self._reading_s = 0.0
        self._read = 0

    def begin(self, now_s: float) -> None:
        """A step begins."""
        self._since_s = now_s

    def end(self, now_s: float, unread: int, still_unread: int) -> None:
        """A step ends.

        Args:
            now_s: By the clock of `begin`.
            unread: Prompt tokens that were to be read when it began.
            still_unread: Of those, still to be read: long prompts take several steps.
        """
        assert self._since_s is not None, "only called after `begin`"
        seconds = now_s - self._since_s
        self._since_s = None
        self.busy_s += seconds
        if unread:
            self._reading_s += max(0.0, seconds - self.step_s)
            self._read += unread - still_unread
            if not still_unread and self._read > 0:
                seen_s = self._reading_s / self._read
                self.unread_s += (RECENT if self.unread_s else 1.0) * (seen_s - self.unread_s)
                self._reading_s, self._read = 0.0, 0
        elif self._seen:
            self.step_s += RECENT * (seconds - self.step_s)
        else:
            self.step_s, self._seen = seconds, True

    def next_s(self, now_s: float, runs: bool, unread: int) -> float:
        """From now to a session's next token, seconds.

        Args:
            now_s: By the clock of `begin`.
            runs: Whether it is in the step that runs now.
            unread: Prompt tokens to be read before.
        """
        left_s = 0.0
        if self._since_s is not None:
            left_s = max(0.0, self._since_s + self.step_s - now_s)
        if runs and self._since_s is not None:
            return left_s
        return left_s + self.step_s + unread * self.unread_s
