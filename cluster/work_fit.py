"""What an engine's step costs, by least squares over what engines did: no coefficient below zero.

busy seconds = step_s * steps + sequence_s * sequence steps + token_s * prompt tokens computed

Under a steady load the three go together, and what they share could be any one's: a sequence that
seems to cost a whole step asks for verifiers that nobody needs. So the two that grow with the load
are held near zero as far as the noise leaves them open (ridge regression: each has a normal prior,
`PRIOR` of a mean step's time wide); of what is known well they keep all.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

FADING: Final = 0.998
"""Weight of a sample after the next one: the last 500 or so count."""
LEAST_SAMPLES: Final = 10
PRIOR: Final = 0.1
"""Of a mean step's time, what a sequence or a prompt token may cost before any is seen."""
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
        self._weight = self._seconds = self._steps = 0.0

    def add(self, steps: float, sequence_steps: float, prompt_tokens: float, busy_s: float) -> None:
        """What one engine did in so much of its time."""
        # Each sample counts by its time, as 1 / busy_s of its square does.
        row = np.array([steps, sequence_steps, prompt_tokens]) / np.sqrt(busy_s)
        self._products = FADING * self._products + np.outer(row, row)
        self._targets = FADING * self._targets + row * np.sqrt(busy_s)
        self._weight = FADING * self._weight + 1.0
        self._seconds = FADING * self._seconds + busy_s
        self._steps = FADING * self._steps + steps
        self.samples += 1

    def cost(self) -> StepCosts | None:
        """The best fit; None where too little was seen, or nothing explains the time."""
        if self.samples < LEAST_SAMPLES:
            return None
        free = self._best(self._products)
        if free is None:
            return None
        return _costs(free if (held := self._best(self._held(free))) is None else held)

    def _held(self, free: Floats) -> Floats:
        """The products with the prior, which weighs as much as the noise that `free` leaves."""
        left = self._seconds - 2 * free @ self._targets + free @ self._products @ free
        noise = max(0.0, float(left)) / max(self._weight - 3.0, 1.0)
        # The mean step: all the time for all the steps.
        wide_s = PRIOR * self._seconds / max(self._steps, 1.0)
        return self._products + np.diag([0.0, 1.0, 1.0]) * noise / wide_s**2

    def _best(self, products: Floats) -> Floats | None:
        """The best fit without a coefficient below zero; None where nothing explains the time."""
        best: Floats | None = None
        least = np.inf
        # Three coefficients have seven sets of positive ones; the best of those is the solution.
        for size in (3, 2, 1):
            for chosen in combinations(range(3), size):
                solution = self._solved(products, chosen)
                if solution is None or (solution < 0).any():
                    continue
                if size == 3:  # nothing constrains it
                    return solution
                loss = solution @ products @ solution - 2 * solution @ self._targets
                if loss < least - 1e-12:
                    best, least = solution, float(loss)
        return best

    def _solved(self, products: Floats, chosen: tuple[int, ...]) -> Floats | None:
        places = np.array(chosen)
        products = products[np.ix_(places, places)]
        scale = np.sqrt(np.diag(products))
        if not scale.all():
            return None
        normal = products / np.outer(scale, scale)
        if np.linalg.det(normal) < 1e-9:  # of a correlation matrix: 1 apart, 0 alike
            return None
        solution: Floats = np.zeros(3)
        solution[places] = np.linalg.solve(normal, self._targets[places] / scale) / scale
        return solution


def _costs(found: Floats) -> StepCosts:
    return StepCosts(float(found[0]), float(found[1]), float(found[2]))
