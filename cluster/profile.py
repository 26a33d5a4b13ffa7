"""The profile of a cluster: what its verifiers have learned of their steps and drafts.

Taken from what a verifier reports, after some load at several concurrencies has shown it what
steps cost, and kept as a JSON file beside the cluster's YAML.
"""

import json
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cluster.chat import Conversation
from cluster.errors import NoProfile
from cluster.local import LocalCluster
from cluster.planner import DraftModel, Profile
from kvstore.draft_report import DraftWorkerReport
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live
from kvstore.verifier_report import VerifierReport
from replicas.verifier.step_cost import StepCost

LEAST_SAMPLES = 200
CONCURRENCIES = (1, 2, 4, 8, 16)
ANSWER_TOKENS = 64
TRIPS = 5
REPORT_S = 3.0
"""Until what was learned has travelled to the registry: a second, twice, and some."""
QUESTIONS = (
    "Repeat exactly: the quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Write the numbers from 1 to 40, separated by commas.",
    "Write a haiku about the sea.",
    "List five fruits, one per line, each with a colour.",
)


def profile_file(config_file: Path) -> Path:
    """Where the profile of a cluster is kept."""
    return config_file.with_suffix(".profile.json")


def measure(cluster: LocalCluster, told: Callable[[str], None]) -> Profile:
    """Puts load on a running cluster and reads what its verifiers then report.

    Args:
        cluster: Runs, with split drafting.
        told: Gets each step's name.

    Raises:
        NoProfile: It reports no profile.
        RequestFailed: It did not answer.
    """
    for concurrency in CONCURRENCIES:
        told(f"asking {concurrency} at a time")
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(lambda number: _ask(cluster, number), range(max(2, concurrency))))
    told("reading what the verifiers report")
    time.sleep(REPORT_S)
    settings, name = redis_settings(cluster.config), cluster.config.name
    workers = read_live(settings, name, "draft").reports
    return profile_of(read_live(settings, name, "verifier").reports, model_of(workers))


def model_of(workers: Sequence[DraftWorkerReport]) -> DraftModel | None:
    """The draft model of the workers, as the first that has used its own knows it.

    In a verifier it is expected to take as long: nobody has seen it there.
    """
    for worker in workers:
        model = worker.model
        if model is not None and model.step_s > 0:
            missed = model.branched + model.restarted
            prepared = model.branched / missed if missed else 0.0
            return DraftModel(model.step_s, model.step_s, trip_s(worker.endpoint), prepared)
    return None


def trip_s(endpoint: str) -> float:
    """The way to `tcp://host:port` and back, by what it takes to connect from here; 0 where it
    can't be reached from here.
    """
    address = urlsplit(endpoint)
    taken_s = []
    for _ in range(TRIPS):
        started_s = time.perf_counter()
        try:
            socket.create_connection((address.hostname or "", address.port or 0), 1.0).close()
        except OSError:
            return 0.0
        taken_s.append(time.perf_counter() - started_s)
    return statistics.median(taken_s)


def profile_of(reports: Sequence[VerifierReport], model: DraftModel | None = None) -> Profile:
    """The profile of the verifier that has learned from most steps.

    Args:
        reports: Of all verifiers.
        model: The draft model of their workers.

    Raises:
        NoProfile: None has learned enough.
    """
    governed = [report.governor for report in reports if report.governor is not None]
    if not governed:
        raise NoProfile("no verifier reports step times; only split drafting measures them")
    best = max(governed, key=lambda governor: governor.step.samples)
    step = best.step
    if step.samples < LEAST_SAMPLES:
        raise NoProfile(
            f"only {step.samples} steps of decoding were seen and {LEAST_SAMPLES} are needed; "
            "let the cluster answer more requests"
        )
    return Profile(
        cost=StepCost(
            step.fixed_s,
            step.row_s,
            step.kv_s,
            step.draft_kv_s,
            tuple(step.shapes),
            tuple(zip(step.knot_rows, step.knot_s, strict=True)),
            step.sequence_s,
        ),
        acceptance=tuple(best.acceptance),
        found=best.mean_found,
        wait_s=best.wait_s,
        context=best.mean_context,
        samples=step.samples,
        model=model,
    )


def save(profile: Profile, file: Path) -> None:
    """Writes a profile for `load`."""
    file.write_text(json.dumps(msgspec.to_builtins(profile), indent=1) + "\n")


def load(file: Path) -> Profile:
    """Reads a profile.

    Raises:
        NoProfile: There is none, or it cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except FileNotFoundError:
        raise NoProfile(
            f"{file} is not there: start the cluster and take one with `paceline plan --measure`"
        ) from None
    except msgspec.DecodeError as error:
        raise NoProfile(f"{file} is no profile: {error}") from error


def _ask(cluster: LocalCluster, number: int) -> None:
    conversation = Conversation(cluster.url, cluster.config.model.name, ANSWER_TOKENS)
    for _ in conversation.ask(QUESTIONS[number % len(QUESTIONS)]):
        pass
