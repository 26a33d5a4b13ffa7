"""How every benchmark measures: arms side by side, interleaved, with an A/A arm.

A benchmark names its arms and cells and hands over one function that measures
one arm in one cell. The harness repeats, rotates the order of the arms from
repetition to repetition, takes medians with bootstrap intervals, compares
ratios of medians, prints the table and writes `build/bench/<name>.json`.
"""

import json
import logging
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

RESULTS = Path("build/bench")
BOOTSTRAP_ROUNDS = 2000
CONFIDENCE = 0.95

console = Console(highlight=False, width=120)
logging.disable(logging.WARNING)  # what the parts say while they are measured is in their logs


@dataclass(frozen=True)
class Metric:
    """What is measured. `higher_is_better` only words the verdict."""

    name: str
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class Row:
    """One number of the table: a median with its interval over `runs` repetitions."""

    arm: str
    cell: str
    metric: str
    unit: str
    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Comparison:
    """A claim: `arm` against `base`, both measured in the same run.

    Attributes:
        aa_arm: The arm that is the same as `base`; what it differs by is noise.
        target: Smallest ratio (largest, where lower is better) that meets the claim.
        cells: Where it is claimed; empty: in all.
        aa_base: What `aa_arm` is the same as, where that is not `base`.
    """

    arm: str
    base: str
    aa_arm: str
    metric: Metric
    target: float
    cells: tuple[str, ...] = ()
    aa_base: str = ""


@dataclass(frozen=True)
class Verdict:
    """A ratio of medians, and whether it may be counted."""

    cell: str
    comparison: Comparison
    ratio: float
    low: float
    high: float
    aa_spread: float

    @property
    def met(self) -> bool:
        """Whether the target is met by the median ratio."""
        if self.comparison.metric.higher_is_better:
            return self.ratio >= self.comparison.target
        return self.ratio <= self.comparison.target

    @property
    def counts(self) -> bool:
        """Whether noise, by the A/A arm, is under half the distance from the target."""
        return self.aa_spread < abs(self.ratio - self.comparison.target) / 2

    def __str__(self) -> str:
        word = "met" if self.met else "missed"
        doubt = "" if self.counts else "; within noise, needs more repetitions"
        return f"{word}{doubt}"


Measure = Callable[[str, str, int], dict[str, float]]
"""(arm, cell, repetition) -> value of each metric by name."""


class Bench:
    """Runs one benchmark. Values are kept as they come, in `build/bench/<name>.values.json`."""

    def __init__(
        self, name: str, arms: Sequence[str], cells: Sequence[str], metrics: Sequence[Metric]
    ) -> None:
        self.name, self.arms, self.cells, self.metrics = name, arms, cells, metrics
        self.values: dict[tuple[str, str, str], list[float]] = {}

    def run(self, measure: Measure, repetitions: int) -> None:
        """Measures every arm in every cell `repetitions` times, arms interleaved."""
        for repetition in range(repetitions):
            for cell in self.cells:
                turn = (repetition + self.cells.index(cell)) % len(self.arms)
                for arm in [*self.arms[turn:], *self.arms[:turn]]:
                    started_s = time.monotonic()
                    for metric, value in measure(arm, cell, repetition).items():
                        self.values.setdefault((arm, cell, metric), []).append(value)
                    self._keep()
                    console.print(
                        f"  repetition {repetition + 1}/{repetitions}  {cell}  {arm}  "
                        f"{time.monotonic() - started_s:.1f} s"
                    )

    def _keep(self) -> None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        kept = [[*key, *values] for key, values in self.values.items()]
        (RESULTS / f"{self.name}.values.json").write_text(json.dumps(kept))

    def rows(self) -> list[Row]:
        """The table, one row a number."""
        return [
            Row(arm, cell, metric.name, metric.unit, statistics.median(values), *ends, len(values))
            for metric in self.metrics
            for cell in self.cells
            for arm in self.arms
            if (values := self.values.get((arm, cell, metric.name)))
            for ends in [_interval([values], lambda drawn: statistics.median(drawn[0]))]
        ]

    def verdicts(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Every comparison in each of its cells."""
        return [
            self._verdict(comparison, cell)
            for comparison in comparisons
            for cell in comparison.cells or self.cells
        ]

    def _verdict(self, comparison: Comparison, cell: str) -> Verdict:
        def of(arm: str) -> list[float]:
            return self.values[(arm, cell, comparison.metric.name)]

        def ratio(drawn: list[list[float]]) -> float:
            return statistics.median(drawn[0]) / statistics.median(drawn[1])

        arm, base = of(comparison.arm), of(comparison.base)
        noise = ratio([of(comparison.aa_arm), of(comparison.aa_base or comparison.base)])
        low, high = _interval([arm, base], ratio)
        return Verdict(cell, comparison, ratio([arm, base]), low, high, abs(noise - 1))

    def finish(self, comparisons: Sequence[Comparison], notes: Sequence[str] = ()) -> None:
        """Prints the tables and writes the JSON file."""
        rows = self.rows()
        table = Table(
            *("metric", "cell", "arm", "median", "95 % interval", "runs"), title=self.name
        )
        for row in rows:
            table.add_row(
                f"{row.metric} [{row.unit}]".replace("[", "\\["),
                row.cell,
                row.arm,
                f"{row.median:.4g}",
                f"{row.low:.4g} - {row.high:.4g}",
                str(row.runs),
            )
        console.print(table)
        ratios = Table(
            *("ratio", "cell", "value", "95 % interval", "A/A spread", "target", "verdict"),
            title="ratios of medians",
        )
        for verdict in self.verdicts(comparisons):
            claim = verdict.comparison
            ratios.add_row(
                f"{claim.metric.name}: {claim.arm} / {claim.base}",
                verdict.cell,
                f"{verdict.ratio:.3f}",
                f"{verdict.low:.3f} - {verdict.high:.3f}",
                f"{verdict.aa_spread:.3f}",
                f"{'>=' if claim.metric.higher_is_better else '<='} {claim.target:g}",
                str(verdict),
            )
        console.print(ratios)
        for note in notes:
            console.print(note)
        out = RESULTS / f"{self.name}.json"
        out.write_text(
            json.dumps(
                {
                    "name": self.name,
                    "commit": commit(),
                    "machine": machine(),
                    "rows": [asdict(row) for row in rows],
                },
                indent=1,
            )
        )
        console.print(f"written: {out}")


def _interval(
    samples: list[list[float]], statistic: Callable[[list[list[float]]], float]
) -> tuple[float, float]:
    """Bootstrap interval of a statistic of paired samples (Efron 1979, percentile method)."""
    generator, count = random.Random(0), len(samples[0])
    drawn = []
    for _ in range(BOOTSTRAP_ROUNDS):
        picks = [generator.randrange(count) for _ in range(count)]
        drawn.append(statistic([[sample[pick] for pick in picks] for sample in samples]))
    drawn.sort()
    tail = int(BOOTSTRAP_ROUNDS * (1 - CONFIDENCE) / 2)
    return drawn[tail], drawn[-tail - 1]


def commit() -> str:
    """The commit measured; `-dirty` where the tree differs from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def machine() -> str:
    """Cores, memory and processor in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {model}"
