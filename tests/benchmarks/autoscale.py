"""make bench-autoscale: our autoscaling against Ray's, over a recorded trace, in SIMULATED time.

Requests come as in the Azure LLM inference trace 2023 (conversation; Splitwise, ISCA 2024,
CC-BY 4.0), to a simulated fleet (`tests/support/simulated_fleet.py`). Nothing is served; what is
compared are decisions. Ray's default policy and its delays are the installed package's own code,
under a simulated clock. Each of Ray's policies is swept over its target and its delays, and the
sweep's best arm counts: the fewest replica-seconds among those that met the targets for at least
as many requests as ours, or if none did, the one that met them most often.

    autoscale.py TRACE.csv [--quick]
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from autoscale_plot import plot
from harness import RESULTS, console
from ray.serve.config import AutoscalingConfig as RayAutoscaling
from rich.table import Table
from scaling_arms import Arm, Ours, RayArm, ttft_policy
from simulated_fleet import ENGINE, Request, SimulatedFleet

from configs.sections.scaling import AutoscalingConfig

LEAST, MOST, AT_START = 1, 24, 4
COLD_START_S = 60.0
OURS = AutoscalingConfig(max_verifiers=MOST, ttft_s=2.0, tpot_ms=100.0, cold_start_s=COLD_START_S)
ONGOING = (4.0, 6.0, 8.0, 9.0, 10.0, 11.0, 12.0, 16.0)
TTFT_S = (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)
DELAYS_S = ((30.0, 600.0), (30.0, 120.0), (0.0, 120.0))
"""Ray's own (up, down), ours down, and ours."""
TURN_S = 1.0
QUICK_S = 900.0


@dataclass(frozen=True)
class Result:
    """One arm over the whole trace.

    Attributes:
        arm: Who decided.
        setting: Of a sweep.
        attainment: Part of all requests that met both targets, 0-1.
        replica_s: Replica-seconds, starting and leaving ones included.
        changes: Decisions that changed the number.
        most: Largest number.
        p99_ttft_s: Of those that got a first token.
        timeline: (seconds, target), at each change.
    """

    arm: str
    setting: str
    attainment: float
    replica_s: float
    changes: int
    most: int
    p99_ttft_s: float
    timeline: tuple[tuple[float, int], ...]


def read_trace(file: Path) -> list[tuple[float, int, int]]:
    """(seconds since the first, prompt tokens, answer tokens) of each request."""
    with file.open() as lines:
        rows = [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                max(1, int(row["GeneratedTokens"])),
            )
            for row in csv.DictReader(lines)
        ]
    return [(at_s - rows[0][0], prompt, output) for at_s, prompt, output in rows]


def replay(name: str, setting: str, arm: Arm, trace: list[tuple[float, int, int]]) -> Result:
    """One arm over the trace, and until the last request has ended."""
    targets = (OURS.ttft_s, OURS.tpot_ms / 1000)
    fleet = SimulatedFleet(ENGINE, COLD_START_S, targets)
    fleet.scale(AT_START, 0.0, cold=False)
    requests = [Request(*row) for row in trace]
    now_s, place = 0.0, 0
    while place < len(requests) or fleet.ongoing:
        now_s += TURN_S
        while place < len(requests) and requests[place].at_s <= now_s:
            fleet.route(requests[place])
            place += 1
        fleet.tick(now_s, TURN_S)
        fleet.scale(arm.decide(fleet, now_s), now_s)
    firsts = sorted(request.ttft_s for request in requests)
    return Result(
        name,
        setting,
        sum(request.meets(*targets) for request in requests) / len(requests),
        fleet.replica_s,
        len(fleet.changes) - 1,
        max(target for _, target in fleet.changes),
        firsts[int(0.99 * (len(firsts) - 1))],
        tuple(fleet.changes),
    )


def arms() -> Iterator[tuple[str, str, Arm]]:
    """Ours once, and every setting of Ray's."""
    yield "paceline", "as configured", Ours(OURS, LEAST)
    for up_s, down_s in DELAYS_S:
        for target in ONGOING:
            config = RayAutoscaling(
                min_replicas=LEAST,
                max_replicas=MOST,
                target_ongoing_requests=target,
                upscale_delay_s=up_s,
                downscale_delay_s=down_s,
            )
            yield "ray default", f"{target:g} ongoing, {up_s:g}/{down_s:g} s", RayArm(config)
        for ttft_s in TTFT_S:
            config = RayAutoscaling(
                min_replicas=LEAST,
                max_replicas=MOST,
                upscale_delay_s=up_s,
                downscale_delay_s=down_s,
            )
            name = f"{ttft_s:g} s, {up_s:g}/{down_s:g} s"
            yield "ray ttft", name, RayArm(config, ttft_policy(ttft_s))


def best(results: list[Result], ours: Result) -> Result:
    """Of a sweep: the cheapest that is as good as ours, else the best."""
    as_good = [result for result in results if result.attainment >= ours.attainment]
    if as_good:
        return min(as_good, key=lambda result: result.replica_s)
    return max(results, key=lambda result: result.attainment)


def main() -> None:
    """Replays all arms, prints the table, writes JSON and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--quick", action="store_true", help="the first 15 minutes only")
    options = parser.parse_args()
    trace = read_trace(options.trace)
    if options.quick:
        trace = [row for row in trace if row[0] < QUICK_S]
    results = [replay(name, setting, arm, trace) for name, setting, arm in arms()]
    ours = results[0]
    told = [ours]
    for name in ("ray default", "ray ttft"):
        told.append(best([result for result in results if result.arm == name], ours))
    table = Table(title=f"SIMULATED: {len(trace)} requests in {trace[-1][0]:.0f} s")
    for column in ("arm", "setting", "met", "replica-s", "of ours", "changes", "most", "p99 TTFT"):
        table.add_column(column)
    for result in (*told, *sorted(results[1:], key=lambda r: (r.arm, -r.attainment))):
        table.add_row(
            result.arm,
            result.setting,
            f"{result.attainment:.4f}",
            f"{result.replica_s:.0f}",
            f"{result.replica_s / ours.replica_s:.2f}",
            str(result.changes),
            str(result.most),
            f"{result.p99_ttft_s:.2f}",
            end_section=result is told[-1],
        )
    console.print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "autoscale.json").write_text(json.dumps([asdict(r) for r in results], indent=1))
    (RESULTS / "autoscale.svg").write_text(
        plot(trace, {f"{r.arm} ({r.setting})": r.timeline for r in told})
    )


if __name__ == "__main__":
    main()
