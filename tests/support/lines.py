"""The real line for tests: one cluster at a time, started by the command a user types."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import openai
import pytest
import yaml
from listening import ports_of

from configs import load_config
from kvstore.redis_client import redis_settings
from kvstore.registry import read_live

PACELINE = [sys.executable, "-m", "cluster.cli"]
START_TIMEOUT_S = 300
HEARTBEAT_S = 1.0
DRAFTING_S = 1.0
"""Counts of drafting travel to the replica once a second, and on with its heartbeat."""
MODEL = "smollm2-135m-instruct"
LORA = "shouty"

# Ports and folders of their own: a cluster that runs on this machine is left alone.
PORTS = {
    "http": 18000,
    "redis": 16480,
    "ray": 16380,
    "dashboard": None,
    "metrics": 18080,
    "haproxy_metrics": 19101,
    "haproxy_stats": 18404,
    "replicas_from": 31100,
    "replicas_to": 31200,
    "drafts_from": 31201,
    "drafts_to": 31220,
    "kv_from": 31221,
    "kv_to": 31240,
    "lmcache": 16580,
    "lmcache_http": 16581,
}


@dataclass(frozen=True)
class Line:
    """A running cluster and the ways to look at it."""

    config_file: Path
    config: dict[str, Any]
    _clients: dict[str, openai.OpenAI] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORTS['http']}"

    @property
    def run_folder(self) -> Path:
        return Path(self.config["folders"]["run"]) / self.config["name"]

    def client(self, key: str = "none") -> openai.OpenAI:
        """An openai client of this line that never retries by itself."""
        if key not in self._clients:
            self._clients[key] = openai.OpenAI(
                base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=180
            )
        return self._clients[key]

    def close(self) -> None:
        """Closes the clients' connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def paceline(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line as a user would."""
        return paceline(*args)

    def status(self) -> dict[str, Any]:
        """What `paceline status --json` says."""
        told = self.paceline("status", str(self.config_file), "--json")
        assert told.returncode == 0, told.stderr
        seen: dict[str, Any] = json.loads(told.stdout)
        return seen

    def reports(
        self, kind: Literal["verifier", "draft", "kv"] = "verifier"
    ) -> list[dict[str, Any]]:
        """What the registry knows of the live workers of a kind."""
        config = load_config(self.config_file)
        listing = read_live(redis_settings(config), config.name, kind)
        return [msgspec.to_builtins(report) for report in listing.reports]

    def counters(self) -> dict[str, float]:
        """Gauges that must be back where they were after every request, summed."""
        return self._summed(
            "requests_in_flight", "requests_running", "requests_waiting", "kv_cache_usage"
        )

    def counts(self) -> dict[str, float]:
        """Totals that only grow, summed over the verifiers."""
        self.settle()
        return self._summed("requests_finished", "drafted_tokens", "accepted_tokens")

    def accepted_by_source(self) -> dict[str, int]:
        """Accepted draft tokens of all verifiers, by where they came from."""
        self.settle(DRAFTING_S)
        accepted: dict[str, int] = {}
        for report in self.reports():
            for source, counts in report["draft_sources"].items():
                accepted[source] = accepted.get(source, 0) + sum(counts["accepted"])
        return accepted

    def finished_by_verifier(self) -> dict[str, int]:
        """Requests that each verifier has finished."""
        return {report["worker_id"]: report["requests_finished"] for report in self.reports()}

    def settle(self, more_s: float = 0.0) -> None:
        """Waits until a heartbeat has told of everything that has ended."""
        time.sleep(HEARTBEAT_S + 0.5 + more_s)

    def counters_until(self, true: Callable[[dict[str, float]], bool], within_s: float) -> None:
        """Waits until the heartbeats tell of gauges of which this is true, or fails."""
        deadline_s = time.monotonic() + within_s
        while not true(counters := self.counters()):
            assert time.monotonic() < deadline_s, f"after {within_s} s still {counters}"
            time.sleep(0.1)

    def _summed(self, *keys: str) -> dict[str, float]:
        reports = self.reports()
        return {key: sum(report[key] for report in reports) for key in keys}

    def replica_logs(self) -> str:
        """Everything the verifiers logged."""
        folder = self.run_folder / "ray" / "session_latest" / "logs" / "serve"
        return "\n".join(
            file.read_text(errors="replace") for file in folder.glob("replica_*Verifier*")
        )

    def replica_ports(self) -> list[int]:
        """The HTTP ports on which the verifiers themselves listen."""
        return ports_of("Verifier", PORTS["replicas_from"], PORTS["replicas_to"])


def paceline(
    *args: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user would."""
    return subprocess.run(
        [*PACELINE, *args],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )


class Lines:
    """Starts the line a test asks for, ending the one before: two would share two cores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current: tuple[str, Line] | None = None
        self._failed: dict[str, str] = {}

    def get(self, name: str, config: dict[str, Any]) -> Line:
        """The line called `name`, started from `config` if it does not run yet."""
        if self._current is not None and self._current[0] == name:
            return self._current[1]
        if name in self._failed:
            pytest.fail(self._failed[name])
        self.end()
        file = write_config(self._folder, name, config)
        line = Line(file, yaml.safe_load(file.read_text()))
        self._current = (name, line)  # ended at the end of the session, however the start ends
        started = paceline("up", str(file))
        if started.returncode:
            self._current = None
            self._failed[name] = f"the line did not start:\n{started.stdout}\n{started.stderr}"
            pytest.fail(self._failed[name])
        return line

    def end(self) -> None:
        """Ends the current line, if there is one."""
        if self._current is not None:
            self._current[1].close()
            paceline("down", str(self._current[1].config_file))
        self._current = None


def write_config(folder: Path, name: str, config: dict[str, Any]) -> Path:
    """Writes a config with the tests' ports and a run folder of its own, kept short."""
    run = Path("/tmp") / f"pl-{os.getpid()}"
    file = folder / f"{name}.yaml"
    file.write_text(
        yaml.safe_dump({"name": name, "ports": PORTS, "folders": {"run": str(run)}, **config})
    )
    return file


def base_config(**changes: Any) -> dict[str, Any]:
    """A float32 verifier of SmolLM2 without drafts; `changes` replace whole sections."""
    return {
        "model": {
            "name": MODEL,
            "source": f"builtin:{MODEL}",
            "dtype": "float32",
            "max_model_len": 2048,
            "tool_call_parser": "hermes",
        },
        "hardware": {"kind": "cpu"},
        "verifiers": {
            "cpus": 2,
            "eager": True,
            "drain_s": 1,
            "longest_stream_s": 5,
            "kv_cache": {"memory_gib": 1, "block_size": 32},
        },
        **changes,
    }
