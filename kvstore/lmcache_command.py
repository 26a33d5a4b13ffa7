"""From our config to the command line of one node's LMCache server: a pure translation.

Multiprocess mode: the server holds the node's `dram` tier and moves blocks between it, the
engines on the node and the tiers behind. No secret stands in it: what the server must know of
this cluster, our tier (`kvstore/lmcache_adapter.py`) reads from where it is kept.
"""

import json
from pathlib import Path
from typing import Any, Final

from configs.schema import ClusterConfig

LOOPBACK: Final = "127.0.0.1"
EVICTION: Final = {"lru": "LRU", "arc": "ARC"}
READ_LOCK_S: Final = 60
"""How long blocks that were found for a request are held for it in memory."""
QUIET: Final = {
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "DO_NOT_TRACK": "1",
    "PYTHONHASHSEED": "0",
}
"""Environment of every process with LMCache in it."""


def lmcache_command(config: ClusterConfig, program: Path, config_file: Path) -> list[str]:
    """How the LMCache server of one node is started.

    Args:
        config: The cluster, with `kv.shared`.
        program: LMCache's.
        config_file: The same config as JSON, readable for the server.
    """
    kv, ports = config.kv, config.ports
    dram_gib = next(tier.size_gib for tier in kv.tiers if tier.kind == "dram")
    command = [
        str(program),
        "server",
        f"--host={LOOPBACK}",
        f"--port={ports.lmcache}",
        f"--http-host={LOOPBACK}",
        f"--http-port={ports.lmcache_http}",
        f"--chunk-size={kv.chunk_size}",
        f"--l1-size-gb={dram_gib:g}",
        "--no-l1-use-lazy",
        f"--l1-read-ttl-seconds={READ_LOCK_S}",
        f"--eviction-policy={EVICTION[kv.eviction]}",
        # What came from a tier behind stays in memory, for the next one.
        "--l2-prefetch-policy=retain",
        # Without it an engine on a CPU hangs at its start.
        "--supported-transfer-mode=auto",
    ]
    if config.hardware.kind == "cpu":
        # Engines on a CPU then copy through shared memory. Without, they pickle.
        command.append(f"--shm-name={shared_memory_name(config)}")
    for place, tier in enumerate(kv.tiers):
        if tier.kind != "dram":
            command.append(f"--l2-adapter={json.dumps(_adapter(config, place, config_file))}")
    return command


def shared_memory_name(config: ClusterConfig) -> str:
    """Of the memory tier of a CPU node, in /dev/shm; LMCache takes names that begin like this."""
    return f"lmcache_l1_pool_paceline_{config.name}_{config.ports.lmcache}"


def _adapter(config: ClusterConfig, place: int, config_file: Path) -> dict[str, Any]:
    tier = config.kv.tiers[place]
    adapter: dict[str, Any] = {
        "type": "plugin",
        "module_path": "kvstore.lmcache_adapter",
        "class_name": "SealedAdapter",
        "adapter_params": {"config": str(config_file), "tier": place},
    }
    if tier.kind == "redis":
        adapter["shared"] = True
        if tier.size_gib is not None:
            adapter["eviction"] = {"eviction_policy": EVICTION[config.kv.eviction]}
    return adapter
