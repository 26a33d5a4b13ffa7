"""The chart's Redis starts with what is rendered, and keeps what it holds."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from chart import CHART, Object, one
from listening import free_port
from missing import missing

PASSWORD = "a-password-for-tests"


@pytest.fixture
def stateful(rendered: object) -> Iterator[list[Object]]:
    """The objects of a release with the chart's Redis."""
    if shutil.which("redis-server") is None:
        missing("redis-server is missing: `make redis`")
    yield rendered(CHART / "ci" / "smallest-values.yaml")  # type: ignore[operator]


@contextmanager
def started(objects: list[Object], folder: Path, port: int) -> Iterator[redis.Redis]:
    """The container's own command, its folders put under `folder` and another port."""
    settings = one(objects, "ConfigMap", "-redis")["data"]["redis.conf"]
    container = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/data", "/run/redis", "/etc/redis/redis.conf", "/etc/redis/password"} == mounts

    def here(text: str) -> str:
        for path in ("/data", "/run/redis", "/etc/redis"):
            text = text.replace(path, f"{folder}{path}")
        return text.replace("port 6379", f"port {port}")

    for path in ("data", "run/redis", "etc/redis/password"):
        (folder / path).mkdir(parents=True, exist_ok=True)
    (folder / "etc/redis/redis.conf").write_text(here(settings))
    (folder / "etc/redis/password/password").write_text(PASSWORD)
    command = [here(part) for part in container["command"]]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    client = redis.Redis(port=port, password=PASSWORD)
    try:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline_s, (folder / "log").read_text()
                time.sleep(0.05)
        assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(30)


def test_redis_starts_as_rendered_and_keeps_its_data(
    stateful: list[Object], tmp_path: Path
) -> None:
    """With its password, without evictions, and with what was written when it starts again."""
    port = free_port()
    with started(stateful, tmp_path, port) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("maxmemory") == {"maxmemory": str(256 << 20)}
        client.set("kept", "yes")
        with pytest.raises(redis.AuthenticationError), redis.Redis(port=port) as stranger:
            stranger.ping()
    assert (tmp_path / "run/redis/password.conf").stat().st_mode & 0o077 == 0
    with started(stateful, tmp_path, port) as client:
        assert client.get("kept") == b"yes"
