"""The command line of a node's LMCache server follows from the config, and holds no secret."""

import json
from pathlib import Path
from typing import Any

from configs import parse_config
from kvstore.lmcache_command import lmcache_command


def command_of(**sections: Any) -> list[str]:
    config = parse_config(
        {"model": {"name": "m", "source": "/m"}, "hardware": {"kind": "cpu"}, **sections}, "test"
    )
    return lmcache_command(config, Path("/bin/lmcache"), Path("/run/config.json"))


def test_sizes_ports_and_policies_come_from_the_config() -> None:
    """On loopback, whatever the cluster's host is."""
    command = command_of(
        kv={
            "shared": True,
            "chunk_size": 512,
            "eviction": "arc",
            "tiers": [{"kind": "dram", "size_gib": 2.5}],
        },
        ports={"host": "0.0.0.0", "lmcache": 7001, "lmcache_http": 7002},
    )
    assert command[:2] == ["/bin/lmcache", "server"]
    assert set(command[2:]) >= {
        "--host=127.0.0.1",
        "--port=7001",
        "--http-host=127.0.0.1",
        "--http-port=7002",
        "--chunk-size=512",
        "--l1-size-gb=2.5",
        "--eviction-policy=ARC",
        "--supported-transfer-mode=auto",
        "--shm-name=lmcache_l1_pool_paceline_paceline_7001",
    }
    assert not any("l2-adapter" in word for word in command)


def test_each_tier_behind_memory_is_ours_and_named_by_its_place(monkeypatch: Any) -> None:
    """In their order; the server reads addresses and secrets from the config."""
    monkeypatch.setenv("SECRET_OF_TEST", "hunter2-hunter2-hunter2")
    command = command_of(
        kv={
            "shared": True,
            "token": {"env": "SECRET_OF_TEST"},
            "tiers": [
                {"kind": "dram", "size_gib": 1},
                {"kind": "disk", "size_gib": 9, "path": "/kv"},
                {"kind": "redis", "size_gib": 3},
            ],
        },
        redis={"url": "redis://elsewhere:6379", "password": {"env": "SECRET_OF_TEST"}},
    )
    adapters = [
        json.loads(word.removeprefix("--l2-adapter="))
        for word in command
        if word.startswith("--l2-adapter=")
    ]
    assert [adapter["adapter_params"]["tier"] for adapter in adapters] == [1, 2]
    assert {adapter["adapter_params"]["config"] for adapter in adapters} == {"/run/config.json"}
    assert "eviction" not in adapters[0]
    assert adapters[1]["eviction"] == {"eviction_policy": "LRU"}
    assert "hunter2" not in " ".join(command)
