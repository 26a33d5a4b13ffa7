"""Which processes are ours, and that no others are ended."""

import os
import socket
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from cluster.processes import (
    RUN_ID_VARIABLE,
    Run,
    busy_ports,
    end_processes,
    remove_abandoned_memory,
    spawn,
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def stranger() -> subprocess.Popen[bytes]:
    """A process that looks the same and is not ours."""
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def test_only_processes_of_the_run_are_ended(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """One marked by its environment and one by its session go; the stranger stays."""
    marked = spawn(SLEEP, {**os.environ, RUN_ID_VARIABLE: "run-x"}, tmp_path / "log")
    session = spawn(SLEEP, os.environ, tmp_path / "log")
    run = Run("run-x", frozenset({session.pid}))
    assert {process.pid for process in run.processes()} == {marked.pid, session.pid}
    assert end_processes(run) == 0
    assert marked.wait(5) is not None
    assert session.wait(5) is not None
    assert stranger.poll() is None


def test_children_that_hide_their_environment_are_found(tmp_path: Path) -> None:
    """A child without our variable is still in the session of the program we started."""
    parent = spawn(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
            "'import time; time.sleep(60)'], env={}); sys.stdout.write('up'); "
            "sys.stdout.flush()",
        ],
        {**os.environ, RUN_ID_VARIABLE: "run-y"},
        tmp_path / "log",
    )
    parent.wait(10)
    run = Run("run-y", frozenset({parent.pid}))
    assert len(run.processes()) == 1
    end_processes(run)
    assert run.processes() == []


def test_shared_memory_of_killed_processes_is_removed(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed, and its segment goes with it."""
    segment = shared_memory.SharedMemory(create=True, size=4096)
    name = segment.name
    segment.close()
    code = (
        "import signal, sys, time\n"
        "from multiprocessing import shared_memory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"held = shared_memory.SharedMemory(name={name!r})\n"
        "sys.stdout.write('holding'); sys.stdout.flush()\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    holder = spawn([sys.executable, "-c", code], {**os.environ, RUN_ID_VARIABLE: "run-z"}, log)
    while "holding" not in log.read_text():
        assert holder.poll() is None
    assert end_processes(Run("run-z", frozenset())) == 1
    holder.wait(5)
    assert not (Path("/dev/shm") / name).exists()


def test_only_abandoned_memory_of_the_run_is_removed() -> None:
    """What is mapped, or older than the run, stays; what a dead process left goes."""
    held = shared_memory.SharedMemory(create=True, size=4096)
    code = (
        "from multiprocessing import resource_tracker, shared_memory\n"
        "left = shared_memory.SharedMemory(create=True, size=4096)\n"
        "resource_tracker.unregister(left._name, 'shared_memory')\n"
        "print(left.name)\n"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    file = Path("/dev/shm") / left.stdout.strip()
    try:
        remove_abandoned_memory(since_s=time.time() + 60)
        assert file.exists()
        remove_abandoned_memory(since_s=time.time() - 60)
        assert not file.exists()
        assert (Path("/dev/shm") / held.name).exists()
    finally:
        file.unlink(missing_ok=True)
        held.close()
        held.unlink()


def test_a_busy_port_names_its_owner() -> None:
    """The owner is this very process; a free port has none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (owner,) = busy_ports([port])
        assert owner.pid == os.getpid()
        assert f"port {port} is taken by" in str(owner)
    assert busy_ports([port]) == []
