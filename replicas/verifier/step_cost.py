"""What one engine step costs: the form of the model, and how to ask it.

    T = f(shape(verified)) + sequence_s * sequences + kv_s * context + draft_kv_s * draft_context

`verified` are the rows of the step, one token for each sequence and its draft tokens. Where
steps run in captured graphs they are padded to the next execution shape, so that f is a
staircase; elsewhere it is what was measured, never falling. Reading the KV cache costs by its
tokens: once for each sequence, and more for each draft token that attends to it. A sequence
costs more than its row: it is scheduled, sampled for and answered.

`step_model.py` learns it, `governor.py` and `cluster/planner.py` ask it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

TABLE_ROWS: Final = 1024
"""Verified rows that are tabulated; beyond, f goes on with the model's slope."""


@dataclass(frozen=True)
class StepLoad:
    """What a step of decoding has to do.

    Attributes:
        verified: Rows: one token for each sequence and its draft tokens.
        context: KV tokens of all its sequences, added up.
        draft_context: For each draft token the KV tokens of its sequence, added up.
        sequences: How many.
    """

    verified: float
    context: float = 0.0
    draft_context: float = 0.0
    sequences: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """Time of a step without waiting for drafts, seconds.

    Attributes:
        fixed_s: Of a step, whatever it does.
        row_s: Of one row in the shape that runs.
        kv_s: Of one KV token of a sequence.
        draft_kv_s: Of one KV token that a draft token attends to.
        shapes: Execution shapes in rows, growing. Empty: every number of rows is one.
        knots: (rows, seconds) by which steps of so many rows differ from the straight line;
            in between it is interpolated.
        sequence_s: Of one sequence, besides its row.
    """

    fixed_s: float
    row_s: float
    kv_s: float = 0.0
    draft_kv_s: float = 0.0
    shapes: tuple[int, ...] = ()
    knots: tuple[tuple[int, float], ...] = ()
    sequence_s: float = 0.0

    def padded(self, rows: int) -> int:
        """Rows of the shape in which so many run."""
        place = int(np.searchsorted(self.shapes, rows)) if self.shapes else 0
        return self.shapes[place] if place < len(self.shapes) else rows

    @cached_property
    def table(self) -> Floats:
        """[TABLE_ROWS + 1] seconds by verified rows, without KV; never falls."""
        padded = padded_rows(self.shapes)
        seconds = self.fixed_s + self.row_s * padded
        if self.knots:
            rows, extra_s = zip(*self.knots, strict=True)
            seconds = seconds + np.interp(padded, rows, extra_s)
        growing: Floats = np.maximum.accumulate(np.maximum(seconds, 1e-9))
        return growing

    def rows_s(self, rows: Floats) -> Floats:
        """[n] seconds for [n] numbers of rows, which may be expectations and so fractions."""
        table = self.table
        inside = np.minimum(rows, TABLE_ROWS - 1e-6)
        low = inside.astype(np.int64)
        low_s = table[low]
        seconds = low_s + (inside - low) * (table[low + 1] - low_s)
        if rows[-1] > TABLE_ROWS:
            seconds = seconds + self.row_s * np.maximum(rows - TABLE_ROWS, 0.0)
        return seconds

    def seconds(self, load: StepLoad) -> float:
        """Time of a step, seconds."""
        rows_s = float(self.rows_s(np.array([load.verified]))[0])
        kv_s = self.kv_s * load.context + self.draft_kv_s * load.draft_context
        return rows_s + kv_s + self.sequence_s * load.sequences


_padded: dict[tuple[int, ...], Floats] = {}


def padded_rows(shapes: Sequence[int]) -> Floats:
    """[TABLE_ROWS + 1] rows of the shape in which so many rows run."""
    key = tuple(shapes)
    if key not in _padded:
        rows: np.ndarray[Any, np.dtype[np.int64]] = np.arange(TABLE_ROWS + 1)
        if key:
            place = np.searchsorted(key, rows)
            rows = np.where(place < len(key), np.array([*key, 0])[place], rows)
        _padded[key] = rows.astype(np.float64)
    return _padded[key]
