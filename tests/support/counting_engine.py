"""A draft model that counts, for tests of everything around a real one."""

import threading
from collections.abc import Sequence

from replicas.draft.generation import Grown, Plan


class CountingEngine:
    """Says that each token is followed by the next number.

    Attributes:
        max_model_len: Tokens.
        vocab_size: Tokens; after the last comes the first.
        gate: Each step waits for it; set, it goes freely.
        fails: Whether the next step raises.
        steps: So far.
    """

    def __init__(self, max_model_len: int = 10_000, vocab_size: int = 1_000_000) -> None:
        self.max_model_len = max_model_len
        self.gate = threading.Semaphore(0)
        self.is_free = False
        self.fails = False
        self.steps = 0
        self.closed = False
        self.prompts: list[list[int]] = []
        self.vocab_size = vocab_size
        self._texts: dict[int, list[int]] = {}

    def free(self) -> None:
        """Steps wait for nothing from now on."""
        self.is_free = True
        self.gate.release()

    def allow(self, steps: int) -> None:
        """So many steps more."""
        self.gate.release(steps)

    def change(self, plan: Plan) -> None:
        for request in plan.stop:
            self._texts.pop(request, None)
        for start in plan.start:
            self._texts[start.request] = start.prompt.tolist()
            self.prompts.append(start.prompt.tolist())

    def step(self) -> Sequence[Grown]:
        if not self.is_free:
            self.gate.acquire()
        if self.fails:
            raise RuntimeError("the model fails")
        self.steps += 1
        grown = []
        for request, text in self._texts.items():
            text.append((text[-1] + 1) % self.vocab_size)
            grown.append(Grown(request, text[-1]))
        return grown

    def close(self) -> None:
        self.closed = True
