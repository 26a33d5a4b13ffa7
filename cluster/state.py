"""What `paceline up` leaves for later commands: one small file in the run folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.processes import Run

STATE_FILE = "state.json"


@dataclass(frozen=True)
class RunState:
    """A local cluster that was started.

    Attributes:
        run_id: In the environment of each of its processes.
        config_file: Where its config was read from.
        config: The config itself, as JSON data.
        started_at_s: Wall clock, seconds.
        redis_pid: The private Redis; 0 where there is none.
        ray_pid: `ray start --block`; 0 before it is started.
        kv_pid: What keeps LMCache up; 0 where no KV blocks are shared.
        ready: False until the first answer could be given.
    """

    run_id: str
    config_file: str
    config: dict[str, object]
    started_at_s: float
    redis_pid: int = 0
    ray_pid: int = 0
    ready: bool = False
    kv_pid: int = 0

    @property
    def run(self) -> Run:
        """Its processes."""
        return Run(self.run_id, frozenset({self.redis_pid, self.ray_pid, self.kv_pid} - {0}))

    @property
    def is_running(self) -> bool:
        """Whether its Ray head is alive; one that was joined counts until `paceline down`."""
        ray = self.config.get("ray")
        if isinstance(ray, dict) and ray.get("address"):
            return self.ready
        return any(process.pid == self.ray_pid for process in self.run.processes())

    def save(self, folder: Path) -> None:
        """Writes it whole or not at all."""
        part = folder / f"{STATE_FILE}.part"
        part.write_text(json.dumps(asdict(self)))
        part.replace(folder / STATE_FILE)


def read_state(folder: Path) -> RunState | None:
    """The run of this folder; None where there is none or the file is damaged."""
    try:
        return RunState(**json.loads((folder / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def all_states(runs: Path) -> dict[Path, RunState]:
    """Every run under `runs`, by folder."""
    found = {file.parent: read_state(file.parent) for file in runs.glob(f"*/{STATE_FILE}")}
    return {folder: state for folder, state in found.items() if state is not None}
