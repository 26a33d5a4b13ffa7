"""What an engine's step costs, by least squares over what engines did: no coefficient below zero.

busy seconds = step_s * steps + sequence_s * sequence steps + token_s * prompt tokens computed
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

FADING: Final = 0.998
"""Weight of a sample after the next one: the last 500 or so count."""
LEAST_SAMPLES: Final = 10
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step, of a sequence in it, and of a prompt token; none below zero."""

    step_s: float
    sequence_s: float
    token_s: float


class WorkFit:
    """Keeps the sums that a fit needs, whatever the number of samples."""

    def __init__(self) -> None:
        self.samples = 0
        self._products: Floats = np.zeros((3, 3))
        self._targets: Floats = np.zeros(3)
        self._seconds = 0.0

    def add(self, steps: float, sequence_steps: float, prompt_tokens: float, busy_s: float) -> None:
        """What one engine did in so much of its time."""
        # Each sample counts by its time, as 1 / busy_s of its square does.
        row = np.array([steps, sequence_steps, prompt_tokens]) / np.sqrt(busy_s)
        self._products = FADING * self._products + np.outer(row, row)
        self._targets = FADING * self._targets + row * np.sqrt(busy_s)
        self.samples += 1

    def cost(self) -> StepCosts | None:
        """The best fit; None where too little was seen, or nothing explains the time."""
        if self.samples < LEAST_SAMPLES:
            return None
        best: Floats | None = None
        least = np.inf
        # Three coefficients have seven sets of positive ones; the best of those is the solution.
        for size in (3, 2, 1):
            for chosen in combinations(range(3), size):
                solution = self._solved(chosen)
                if solution is None or (solution < 0).any():
                    continue
                if size == 3:  # nothing constrains it
                    return StepCosts(float(solution[0]), float(solution[1]), float(solution[2]))
                loss = solution @ self._products @ solution - 2 * solution @ self._targets
                if loss < least - 1e-12:
                    best, least = solution, float(loss)
        if best is None:
            return None
        return StepCosts(float(best[0]), float(best[1]), float(best[2]))

    def _solved(self, chosen: tuple[int, ...]) -> Floats | None:
        places = np.array(chosen)
        products = self._products[np.ix_(places, places)]
        scale = np.sqrt(np.diag(products))
        if not scale.all():
            return None
        normal = products / np.outer(scale, scale)
        if np.linalg.det(normal) < 1e-9:  # of a correlation matrix: 1 apart, 0 alike
            return None
        solution: Floats = np.zeros(3)
        solution[places] = np.linalg.solve(normal, self._targets[places] / scale) / scale
        return solution
