"""Which processes are ours, and how they are ended.

Every process of a local cluster inherits PACELINE_RUN_ID, and the session (sid) of
the program that `paceline up` started. Some overwrite their environment with a
title, so either counts; nothing that merely looks like Ray or Redis is ever ended.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN_ID_VARIABLE = "PACELINE_RUN_ID"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps it
TERM_GRACE_S = 5.0
TRACKER_GRACE_S = 2.0


@dataclass(frozen=True)
class PortOwner:
    """Who listens on a port. `pid` is None where the system does not say."""

    port: int
    pid: int | None
    name: str

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid})" if self.pid else self.name
        return f"port {self.port} is taken by {who}"


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Starts a process that outlives us, in a session of its own, so Ctrl-C passes it by."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@dataclass(frozen=True)
class Run:
    """What the processes of one run have in common.

    Attributes:
        run_id: In the environment of those that kept it.
        sessions: Pids of the programs that were started; each leads a session.
    """

    run_id: str
    sessions: frozenset[int]

    def owns(self, process: psutil.Process) -> bool:
        """Whether a live process is one of this run."""
        try:
            return process.status() != psutil.STATUS_ZOMBIE and (
                os.getsid(process.pid) in self.sessions
                or process.environ().get(RUN_ID_VARIABLE) == self.run_id
            )
        except (psutil.Error, OSError):
            return False

    def processes(self) -> list[psutil.Process]:
        """All live processes of this run, in no order."""
        return [process for process in psutil.process_iter() if self.owns(process)]


def end_processes(run: Run) -> int:
    """Ends every process of the run: asks all, waits, kills; removes their shared memory.

    Returns:
        How many processes had to be killed.
    """
    asked = run.processes()
    shared = shared_memory_of(asked)
    _signal(asked, "terminate")
    psutil.wait_procs(asked, timeout=TERM_GRACE_S)
    killed = 0
    # A process that was asked may have started one more before it went.
    while stubborn := run.processes():
        shared |= shared_memory_of(stubborn)
        # Python's resource trackers remove what their dead parents left: they go last.
        targets = [process for process in stubborn if not _is_tracker(process)] or stubborn
        _signal(targets, "kill")
        psutil.wait_procs(stubborn, timeout=TRACKER_GRACE_S)
        killed += len(targets)
    for file in shared:
        file.unlink(missing_ok=True)
    return killed


def shared_memory_of(processes: Sequence[psutil.Process]) -> set[Path]:
    """Files in /dev/shm that the processes have mapped; a killed process leaves them behind."""
    files: set[Path] = set()
    for process in processes:
        try:
            maps = process.memory_maps(grouped=True)
        except (psutil.Error, OSError):
            continue
        files |= {Path(area.path) for area in maps if area.path.startswith(f"{SHARED_MEMORY}/")}
    return files


def remove_abandoned_memory(since_s: float) -> None:
    """Unlinks shared memory and semaphores of Python's that nobody has open any more.

    vLLM leaves a semaphore behind at each engine start, and a verifier that was killed
    its segments. No process has them mapped, so they can't be told by their owner: only
    by their user, their age and that they are garbage.

    Args:
        since_s: Wall clock, seconds; older ones are not from this run.
    """
    found = {
        file
        for pattern in ("sem.mp-*", "psm_*")
        for file in Path(SHARED_MEMORY).glob(pattern)
        if _is_our_own(file, since_s)
    }
    if found:
        for file in found - shared_memory_of(list(psutil.process_iter())):
            file.unlink(missing_ok=True)


def _is_our_own(file: Path, since_s: float) -> bool:
    try:
        seen = file.stat()
    except FileNotFoundError:  # its owner has just removed it
        return False
    return seen.st_uid == os.getuid() and seen.st_mtime >= since_s


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _signal(processes: Sequence[psutil.Process], how: str) -> None:
    for process in processes:
        try:
            getattr(process, how)()
        except psutil.Error:
            continue


def busy_ports(ports: Sequence[int]) -> list[PortOwner]:
    """The owners of those `ports` that somebody listens on already."""
    listening = {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }
    return [
        PortOwner(port, listening[port], _name(listening[port]))
        for port in ports
        if port in listening
    ]


def _name(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process that just ended"
