"""A Ray cluster that is started by hand serves what the chart renders, by `serve deploy`."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart import CHART, Object
from lines import MODEL, Lines
from ray_release import PORTS, START_S, URL, rendered_here, started
from redis_server import RedisServer
from tiny_models import make_tiny_llama
from waiting import until

from cluster.leave import process_titles, replicas

pytestmark = pytest.mark.line

POD_MODELS = "/var/lib/paceline/models"  # a folder of this machine stands in
SETTLED = 20
"""Answers in a row that are alike when all verifiers have the new weights."""
ENDING_S = 60
"""What a verifier may take to end once its node's time is over, on a slow machine."""
TOKEN = "a token of twenty-four bytes"


def values(redis_url: str, **cluster: Any) -> Object:
    """The chart's values: a small model on a CPU, a Redis outside."""
    hardware = {"kind": "cpu"}
    redis = {"url": redis_url, "password": {"env": "PACELINE_REDIS_PASSWORD"}}
    return {
        "cluster": {"hardware": hardware, "redis": redis, "ports": PORTS, **cluster},
        "redis": {"enabled": False, "existingSecret": "redis"},
    }


@pytest.mark.timeout(900)
def test_serve_deploy_serves_what_the_chart_renders(
    lines: Lines, redis_server: RedisServer, smollm2: Path, tmp_path: Path
) -> None:
    """Its Serve config, environment and Ray parameters; then `helm test` finds all well."""
    lines.end()  # a node that leaves looks at all of its machine's processes
    model = {"name": MODEL, "source": f"builtin:{MODEL}", "dtype": "float32", "max_model_len": 1024}
    rendered = values(
        redis_server.settings.url,
        model=model,
        verifiers={"eager": True, "drain_s": 1, "longest_stream_s": 5},
        drafting={"colocated": {"method": "ngram"}},
    )
    password = redis_server.settings.password or ""
    with started(tmp_path, rendered, ["verifiers"], PACELINE_REDIS_PASSWORD=password) as release:
        release.deploy(rendered_here(tmp_path, rendered, {POD_MODELS: str(smollm2.parent)}))
        release.environment.update(
            BASE_URL=URL, MODEL=MODEL, METRICS=f"127.0.0.1:{PORTS['metrics']}", DRAFTING="tokens"
        )
        asked = release.run("python", str(CHART / "files" / "smoke.py"))
        assert asked.endswith("all is well\n"), asked
        # Its node leaves, as a pod does before it stops: Serve ends the verifier there.
        assert _verifiers(), "the verifier is no process here"
        # The router, beside the head's proxy on this same machine, keeps `leave` waiting: 1.
        release.run("python", "-m", "cluster.leave", "15", ok=(0, 1))
        # Serve begins as late as the deadline allows, and ends by force what is not gone by then.
        until(lambda: not _verifiers(), ENDING_S, poll_s=0.2)


def _verifiers() -> list[str]:
    return [title for title in replicas(process_titles()) if "Verifier" in title]


class Asking:
    """Asks again and again, two requests at a time, and keeps what came of each."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.failures: list[str] = []
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(2)

    def __enter__(self) -> "Asking":
        for _ in range(2):
            self._pool.submit(self._ask_on)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def until_settled(self) -> None:
        """Returns when the last answers are all alike, and are not those of the beginning."""
        deadline_s = time.monotonic() + START_S
        while set(self.answers[-SETTLED:]) != {self.answers[-1]} or self.answers[-1] == self.first:
            assert time.monotonic() < deadline_s, Counter(self.answers)
            time.sleep(0.2)

    @property
    def first(self) -> str:
        """The first answer."""
        return self.answers[0]

    def _ask_on(self) -> None:
        while not self._stopped.is_set():
            try:
                self.answers.append(ask())
            except (httpx.HTTPError, AssertionError) as error:
                self.failures.append(f"{time.strftime('%X')} {type(error).__name__}: {error}")
            self._stopped.wait(0.2)


def ask() -> str:
    """What the model says; random weights say the same nonsense each time, and others other."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{URL}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, f"{answer.status_code} {answer.text[:200]}"
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_new_weights_roll_in_while_the_service_goes_on(
    lines: Lines, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Target and draft are folders; another `source`, and another deploy, asks for others."""
    lines.end()
    weights = tmp_path / "weights"
    for seed in (1, 2):
        make_tiny_llama(weights / f"target-{seed}", seed=seed)
        make_tiny_llama(weights / f"draft-{seed}", seed=seed, layers=1)

    def release_of(seed: int) -> Object:
        draft = {"source": f"{weights}/draft-{seed}", "dtype": "float32"}
        workers = {"kinds": ["model"], "draft": draft}
        return {
            **values(
                redis_server.settings.url,
                model={"name": "tiny", "source": f"{weights}/target-{seed}", "dtype": "float32"},
                verifiers={
                    "replicas": 2,
                    "eager": True,
                    "kv_cache": {"memory_gib": 0.25},
                    "drain_s": 1,
                    "longest_stream_s": 10,
                },
                drafting={"split": {"workers": workers, "token": {"env": "DRAFT_TOKEN"}}},
            ),
            "secretEnv": [{"name": "DRAFT_TOKEN", "secret": "a", "key": "b"}],
            "models": {"mountPath": str(weights), "hostPath": str(weights)},
        }

    secrets = {"PACELINE_REDIS_PASSWORD": redis_server.settings.password or ""}
    secrets |= {"DRAFT_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    nodes = ["verifiers", "verifiers", "draft-workers"]
    with started(tmp_path, release_of(1), nodes, **secrets) as release:
        release.deploy(rendered_here(tmp_path, release_of(1), {}))
        old = ask()
        with Asking() as asking:
            time.sleep(3)
            release.deploy(rendered_here(tmp_path, release_of(2), {}))
            asking.until_settled()
        new = ask()
    assert new != old
    seen = Counter(asking.answers)
    assert set(seen) == {old, new}, seen
    assert min(seen.values()) >= 5, seen
    assert not asking.failures, f"{len(asking.failures)} of {sum(seen.values())}: {asking.failures}"
