"""Says what the last scaling decision was, and what it was made from."""

from collections.abc import Iterator

from kvstore.scaling_report import PoolReport, ScalingReport


def scaling_words(decided: ScalingReport, now_s: float) -> Iterator[str]:
    """A line for each kind of worker, and one for what was seen.

    Args:
        decided: The last decision.
        now_s: Wall clock, seconds; one that is old is said to be.
    """
    yield f"verifiers: {_pool(decided.verifiers)}"
    if decided.draft_workers is not None:
        yield f"draft workers: {_pool(decided.draft_workers)}"
    met = "-" if decided.attainment is None else f"{decided.attainment:.0%}"
    yield (
        f"scaling sees {decided.measured_rate:.2f} requests/s and plans for {decided.rate:.2f}; "
        f"{met} of recent requests met the targets; a step takes {decided.step_s * 1e3:.1f} ms + "
        f"{decided.sequence_s * 1e3:.2f} ms a sequence + {decided.token_s * 1e6:.0f} us a prompt "
        f"token and gives {decided.tokens_per_step:.2f} tokens a sequence; a start takes "
        f"{decided.cold_start_s:.0f} s (decided {max(0.0, now_s - decided.at_s):.0f} s ago)"
    )


def _pool(pool: PoolReport) -> str:
    starting = f", {pool.running} running" if pool.running != pool.target else ""
    return f"{pool.target} wanted{starting}: {pool.reason}"
