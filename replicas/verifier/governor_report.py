"""What a verifier tells of its governor (`kvstore/verifier_report.py`)."""

from typing import Final

from kvstore.verifier_report import GovernorReport, StepCostReport
from replicas.verifier.draft_books import LengthBooks
from replicas.verifier.step_model import StepModel

MAX_KNOTS_TOLD: Final = 64


def governor_report(
    mode: str, pressure: int, books: LengthBooks, model: StepModel, wait_s: float, probes: int
) -> GovernorReport:
    """Where drafting is, and by what; asks `books` for the commonest reason since the last time.

    Args:
        mode: `drafting.governor.mode`.
        pressure: 0-5.
        books: What was decided, and what came of it.
        model: What steps cost.
        wait_s: What a step takes longer when drafts are asked for, seconds.
        probes: Made so far.
    """
    cost = model.cost
    knots = cost.knots[:MAX_KNOTS_TOLD]
    return GovernorReport(
        mode=mode,
        pressure=pressure,
        lengths=list(books.lengths),
        reason=books.reason(),
        expected_tokens=books.expected_tokens,
        real_tokens=books.real_tokens,
        mean_length=books.mean_length,
        mean_rows=books.mean_rows,
        mean_context=books.mean_context,
        mean_found=min(1.0, books.mean_found),
        acceptance=books.acceptance,
        gain=books.gain,
        gain_needed=books.gain_needed,
        token_s=books.token_s,
        wait_s=wait_s,
        probes=probes,
        step=StepCostReport(
            *(cost.fixed_s, cost.row_s, cost.kv_s, cost.draft_kv_s),
            shapes=list(cost.shapes),
            knot_rows=[rows for rows, _ in knots],
            knot_s=[seconds for _, seconds in knots],
            samples=model.samples,
            error=min(1.0, model.error),
            sequence_s=cost.sequence_s,
        ),
    )
