"""`paceline up` and `down`: every way to fail is told clearly and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lines import PACELINE, PORTS, Lines, base_config, paceline, write_config

pytestmark = pytest.mark.line


@pytest.fixture
def nothing_runs(lines: Lines) -> None:
    """Ends the line of earlier tests: these start and fail their own."""
    lines.end()


def left_behind(config_file: Path) -> list[str]:
    """Folders and listening ports of a cluster that should be gone."""
    run = Path("/tmp") / f"pl-{os.getpid()}"
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == "LISTEN"}
    ports = [str(port) for port in PORTS.values() if port in listening]
    return [*ports, *(str(path) for path in run.glob("*"))]


def test_a_model_that_is_not_there_is_named(nothing_runs: None, tmp_path: Path) -> None:
    """`up` fails before anything is started, naming the key and the path."""
    config = base_config()
    config["model"]["source"] = str(tmp_path / "no-such-model")
    told = paceline("up", str(write_config(tmp_path, "nomodel", config)))
    assert told.returncode == 1
    assert "model.source" in told.stderr
    assert "no-such-model" in told.stderr
    assert not left_behind(tmp_path)


def test_too_little_memory_is_told_with_both_numbers(nothing_runs: None, tmp_path: Path) -> None:
    """A KV cache larger than the machine is refused by the check."""
    config = base_config()
    config["verifiers"]["kv_cache"]["memory_gib"] = 4000
    told = paceline("up", str(write_config(tmp_path, "nomemory", config)))
    assert told.returncode == 1
    assert "memory_gib" in told.stderr
    assert "4000" in told.stderr.replace(",", "")


def test_a_missing_redis_server_is_named_with_the_remedy(
    nothing_runs: None, tmp_path: Path
) -> None:
    """Without redis-server on the PATH, `up` says how to get it."""
    only_python = tmp_path / "bin"
    only_python.mkdir()
    told = paceline(
        "up",
        str(write_config(tmp_path, "noredis", base_config())),
        environment={"PATH": str(only_python)},
    )
    assert told.returncode == 1
    assert "redis-server" in told.stderr
    assert "make redis" in told.stderr
    assert not left_behind(tmp_path)


def test_a_taken_port_is_named_with_its_owner(nothing_runs: None, tmp_path: Path) -> None:
    """`up` names key, port and process; the process lives on."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(PORTS["http"]), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", PORTS["http"])) == 0:
                    break
            time.sleep(0.1)
        told = paceline("up", str(write_config(tmp_path, "noport", base_config())))
        assert told.returncode == 1
        assert "ports.http" in told.stderr
        assert f"port {PORTS['http']} is taken by" in told.stderr
        assert f"pid {owner.pid}" in told.stderr
        assert owner.poll() is None
    finally:
        owner.kill()
        owner.wait()


def test_a_verifier_that_cannot_start_is_told_in_its_own_words(
    nothing_runs: None, tmp_path: Path, smollm2: Path
) -> None:
    """Damaged weights pass the check; `up` exits with vLLM's own error and cleans up."""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in smollm2.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "tokenizer.json").write_text("{}")
    config = base_config()
    config["model"]["source"] = str(damaged)
    config["verifiers"]["start_attempts"] = 1
    told = paceline("up", str(write_config(tmp_path, "damaged", config)))
    assert told.returncode == 1
    assert "added_tokens" in told.stderr
    assert "tokenization" in told.stderr
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("moment", ["starting Ray", "loading the model"])
def test_ctrl_c_takes_everything_back(nothing_runs: None, tmp_path: Path, moment: str) -> None:
    """Interrupted at any moment, `up` exits with 130 and leaves nothing."""
    file = write_config(tmp_path, "interrupted", base_config())
    # A shell's background jobs ignore it, and so would what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [*PACELINE, "up", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        assert up.stdout is not None
        for line in up.stdout:
            if moment in line:
                break
        time.sleep(2)
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    assert not left_behind(tmp_path)


def test_down_twice_does_no_harm(nothing_runs: None, tmp_path: Path) -> None:
    """With nothing running, `down` says so and exits with 0."""
    file = str(write_config(tmp_path, "never", base_config()))
    for _ in range(2):
        told = paceline("down", file)
        assert told.returncode == 0
        assert "nothing runs" in told.stdout
    for command in (("status", file), ("chat", "Hi", "--cluster", file)):
        told = paceline(*command)
        assert told.returncode == 1
        assert "paceline up" in told.stderr


def test_a_second_up_reuses_and_down_leaves_nothing(
    nothing_runs: None, lines: Lines, tmp_path: Path
) -> None:
    """`up` twice is one cluster; another config of its name is refused; `down` clears all."""
    shared_before = set(Path("/dev/shm").iterdir())
    temporary_before = set(Path("/tmp").iterdir())
    line = lines.get("twice", base_config())
    again = line.paceline("up", str(line.config_file))
    assert again.returncode == 0
    assert "runs already" in again.stdout
    other = base_config()
    other["verifiers"]["seed"] = 7
    refused = line.paceline("up", str(write_config(tmp_path, "twice", other)))
    assert refused.returncode == 1
    assert "another config" in refused.stderr
    asked = line.paceline("chat", "Say hello.", "--cluster", str(line.config_file))
    assert asked.returncode == 0
    assert "tokens/s" in asked.stdout
    assert line.paceline("down", str(line.config_file)).returncode == 0
    assert not left_behind(tmp_path)
    assert set(Path("/dev/shm").iterdir()) <= shared_before
    assert set(Path("/tmp").iterdir()) <= temporary_before
    assert "nothing runs" in line.paceline("down", str(line.config_file)).stdout
