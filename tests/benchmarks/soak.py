"""Ten minutes of load and traffic that change every minute: does anything drift, leak or lag?

    make bench-soak            QUICK=1 make bench-soak (two minutes)

One line with split prompt lookup. Each phase has clients that ask again as soon as they are
answered: copying, which drafts well, or chat at temperature 1, which does not, by 1, 4 or 8 at a
time. Looked at every second: what the governor expected and what came, the cluster's memory, and
in the end what is still held for requests that are over.
"""

import argparse
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from clusters import moved, running
from harness import console, machine
from rich.table import Table

from cluster.local import LocalCluster
from cluster.processes import RUN_ID_VARIABLE
from configs import ClusterConfig, load_config
from configs.sections.drafting import DraftingConfig, DraftWorkerConfig, SplitDrafting
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live
from kvstore.verifier_report import VerifierReport

COPY = "Copy this list word for word, number {n}: " + ", ".join(
    f"item {number} weighs {number * 7} grams" for number in range(12)
)
CHAT = "Question {n}: tell me a short story about a cyclist."
PHASES = (("copy", 1), ("chat", 8), ("copy", 8), ("chat", 1), ("copy", 4))
ANSWER_TOKENS = 64
WINDOW_S = 5.0
WORST_ERROR, WORST_LAG_S, WORST_GROWTH, LEAST_RATE = 0.15, 30.0, 0.05, 0.85
LEAST_TOKENS = 10
"""Of a window that says something."""


@dataclass(frozen=True)
class Sample:
    """The verifier's account at one moment; tokens run since its start."""

    at_s: float
    expected: float
    real: float
    length: float


@dataclass
class Phase:
    """What was seen of one phase."""

    kind: str
    clients: int
    began_s: float = 0.0
    tokens: int = 0
    failed: int = 0
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind}, {self.clients}"

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.tokens / self.seconds

    @property
    def lag_s(self) -> float | None:
        """Time until the governor expected what came, and went on so; None: never."""
        lag_s: float | None = None
        for at_s, error in errors(self.samples):
            if abs(error) > WORST_ERROR:
                lag_s = None
            elif lag_s is None:
                lag_s = at_s - self.began_s
        return lag_s


def errors(samples: list[Sample]) -> list[tuple[float, float]]:
    """(end, expected over real tokens less 1) of each window."""
    found = []
    for last in samples:
        before = [one for one in samples if one.at_s <= last.at_s - WINDOW_S]
        if before and (real := last.real - before[-1].real) >= LEAST_TOKENS:
            found.append((last.at_s, (last.expected - before[-1].expected) / real - 1))
    return found


def bench_config() -> ClusterConfig:
    """configs/local.yaml without what is learned from finished answers."""
    split = SplitDrafting(workers=DraftWorkerConfig(cpus=0), local_lookup=False)
    drafting = DraftingConfig(max_length=8, split=split)
    base = load_config(Path("configs/local.yaml"))
    return moved(base.model_copy(update={"drafting": drafting}), 0)


def report_of(cluster: LocalCluster) -> VerifierReport:
    """What the only verifier says."""
    return read_live(redis_settings(cluster.config), cluster.config.name, "verifier").reports[0]


def memory_mib(run_id: str) -> float:
    """Of all processes of the cluster."""
    total = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID_VARIABLE) == run_id:
                total += process.memory_full_info().uss
        except psutil.Error:
            continue
    return total / (1 << 20)


def run_phase(cluster: LocalCluster, phase: Phase, seconds: float) -> None:
    """Keeps all clients asking, and looks every second."""
    stop = threading.Event()
    lock = threading.Lock()

    def client(number: int) -> None:
        asked = 0
        with httpx.Client(timeout=120) as session:
            while not stop.is_set():
                asked += 1
                prompt = (COPY if phase.kind == "copy" else CHAT).format(n=1000 * number + asked)
                answer = session.post(
                    f"{cluster.url}/v1/completions",
                    json={
                        "model": cluster.config.model.name,
                        "prompt": f"{prompt}\n",
                        "max_tokens": ANSWER_TOKENS,
                        "ignore_eos": True,
                        "temperature": 0 if phase.kind == "copy" else 1,
                    },
                )
                with lock:
                    if answer.status_code == 200:
                        phase.tokens += answer.json()["usage"]["completion_tokens"]
                    else:
                        phase.failed += 1

    clients = [threading.Thread(target=client, args=(n,)) for n in range(phase.clients)]
    phase.began_s = time.monotonic()
    for one in clients:
        one.start()
    while (now_s := time.monotonic()) < phase.began_s + seconds:
        governor = report_of(cluster).governor
        assert governor is not None, "the line has split drafting"
        phase.samples.append(
            Sample(now_s, governor.expected_tokens, governor.real_tokens, governor.mean_length)
        )
        time.sleep(1)
    stop.set()
    for one in clients:
        one.join()
    phase.seconds = time.monotonic() - phase.began_s


def verdicts(phases: list[Phase], memory: list[float], left: int) -> list[tuple[str, bool]]:
    """What must hold, and whether it does."""
    failed = sum(phase.failed for phase in phases)
    told = [(f"{failed} requests failed, target 0", not failed)]
    lags = [phase.lag_s for phase in phases]
    told.append(
        (
            f"the governor expects what comes again after at most "
            f"{max((lag for lag in lags if lag is not None), default=0):.0f} s, in "
            f"{sum(lag is not None for lag in lags)} of {len(lags)} phases, target "
            f"{WORST_LAG_S:.0f} s in all",
            all(lag is not None and lag <= WORST_LAG_S for lag in lags),
        )
    )
    settled = memory[min(len(PHASES), len(memory) - 1) // 2]
    growth = memory[-1] / settled - 1
    told.append(
        (
            f"memory {settled:.0f} MiB early and {memory[-1]:.0f} MiB at the end, {growth:+.1%}, "
            f"target {WORST_GROWTH:.0%} at most",
            growth <= WORST_GROWTH,
        )
    )
    told.append((f"{left} requests or sessions held in the end, target 0", left == 0))
    rounds = [phases[: len(PHASES)], phases[-len(PHASES) :]]
    if len(phases) > len(PHASES):
        ratios = [late.rate / early.rate for early, late in zip(*rounds, strict=True)]
        told.append(
            (
                f"tokens/s of the last round over the first: median "
                f"{statistics.median(ratios):.2f}, least {min(ratios):.2f}; target of the median "
                f"{LEAST_RATE}",
                statistics.median(ratios) >= LEAST_RATE,
            )
        )
    return told


def main() -> None:
    """Runs, prints, and fails where something drifts, leaks or lags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, half a minute a phase")
    quick = parser.parse_args().quick
    seconds, rounds = (30.0, 1) if quick else (60.0, 2)
    console.print(f"  starting a line; {machine()}")
    with running({"line": bench_config()}) as clusters:
        cluster = clusters["line"]
        state = cluster.running()
        assert state is not None, "it was just started"
        phases, memory = [], [memory_mib(state.run_id)]
        for kind, clients in PHASES * rounds:
            phase = Phase(kind, clients)
            run_phase(cluster, phase, seconds)
            phases.append(phase)
            memory.append(memory_mib(state.run_id))
            console.print(f"  {phase.name}: {phase.rate:.0f} tokens/s, {memory[-1]:.0f} MiB")
        time.sleep(5)
        settings, name = redis_settings(cluster.config), cluster.config.name
        workers = read_live(settings, name, "draft").reports
        left = report_of(cluster).requests_in_flight + sum(one.sessions for one in workers)
    table = Table("phase", "tokens/s", "settled after, s", "error, last window", "mean length")
    for phase in phases:
        last = errors(phase.samples)
        table.add_row(
            phase.name,
            f"{phase.rate:.1f}",
            "never" if phase.lag_s is None else f"{phase.lag_s:.0f}",
            f"{last[-1][1]:+.1%}" if last else "",
            f"{phase.samples[-1].length:.2f}",
        )
    console.print(table)
    told = verdicts(phases, memory, left)
    for text, holds in told:
        console.print(f"{'met' if holds else 'MISSED'}: {text}")
    raise SystemExit(not all(holds for _, holds in told))


if __name__ == "__main__":
    main()
