"""The environment of the fast path."""

from pathlib import Path

import pytest

from cluster.environment import (
    FAST_PATH,
    SHOWN_HEADER,
    fast_path_environment,
    haproxy_folder,
    local_environment,
    require_fast_path,
)
from cluster.errors import FastPathMissing
from configs import ClusterConfig, load_config
from configs.sections.places import RayConfig
from configs.sections.routing import FrontDoorConfig
from configs.sections.values import SecretRef

LOCAL = load_config(Path("configs/local.yaml"))
HAPROXY_SOCKET_LIMIT = 97
RAY_NODE_ID_LENGTH = 56


def test_the_slow_path_is_refused_by_name() -> None:
    """Each missing variable is named with the value it needs."""
    with pytest.raises(FastPathMissing) as missing:
        require_fast_path(LOCAL, {**FAST_PATH, "RAY_SERVE_ENABLE_HA_PROXY": "0"})
    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in str(missing.value)
    require_fast_path(LOCAL, FAST_PATH)


def test_a_router_that_tells_tenants_apart_is_shown_their_keys() -> None:
    """Without the header's name it would see sessions, Ray's default, and know nobody."""
    door = FrontDoorConfig.model_validate({"keys": {"env": "KEYS"}})
    keyed = LOCAL.model_copy(update={"front_door": door})
    with pytest.raises(FastPathMissing) as missing:
        require_fast_path(keyed, FAST_PATH)
    assert f"{SHOWN_HEADER}=authorization" in str(missing.value)
    require_fast_path(keyed, local_environment(keyed, Path("x")))
    assert local_environment(LOCAL, Path("x"))[SHOWN_HEADER] == "x-session-id"


def test_a_local_cluster_keeps_its_files_in_its_own_folders(tmp_path: Path) -> None:
    """Every path in the environment lies beside or below the run folder."""
    environment = local_environment(LOCAL, tmp_path / "x")
    paths = [value for value in environment.values() if value.startswith("/")]
    assert len(paths) >= 6
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)


@pytest.mark.parametrize("name", ["a", "a" * 41])
def test_haproxy_sockets_fit_whatever_the_name(name: str) -> None:
    """HAProxy takes 97 bytes, of which Ray's node folder takes 57."""
    folder = haproxy_folder(LOCAL.folders.run / name)
    assert len(f"{folder}/{'f' * RAY_NODE_ID_LENGTH}/a") <= HAPROXY_SOCKET_LIMIT


def test_what_said_nothing_is_asked_again_elsewhere_once() -> None:
    """HAProxy retries a verifier that could not be reached or hung up without a word."""
    environment = local_environment(LOCAL, Path("/tmp/x/y"))
    assert environment["RAY_SERVE_HAPROXY_RETRY_ON"].split() == ["conn-failure", "empty-response"]
    assert environment["RAY_SERVE_HAPROXY_RETRIES"] == "1"


def test_a_joined_ray_cluster_keeps_its_own_folders(tmp_path: Path) -> None:
    """Only its token, where it asks for one, is ours to bring."""
    joined = LOCAL.model_copy(update={"ray": RayConfig(address="127.0.0.1:6380")})
    environment = local_environment(joined, tmp_path / "x")
    assert not [key for key, value in environment.items() if value.startswith("/")]
    asked = RayConfig(address="127.0.0.1:6380", token=SecretRef(env="TOKEN"))
    with_token = local_environment(LOCAL.model_copy(update={"ray": asked}), tmp_path / "x")
    assert with_token["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "x" / "ray.token")


def test_ports_come_from_the_config() -> None:
    """No port of HAProxy or the replicas is Ray's default by accident."""
    ports = LOCAL.ports.model_copy(
        update={"haproxy_metrics": 4001, "haproxy_stats": 4002, "replicas_from": 4100}
    )
    config: ClusterConfig = LOCAL.model_copy(update={"ports": ports})
    environment = local_environment(config, Path("/tmp/x/y"))
    assert environment["RAY_SERVE_HAPROXY_METRICS_PORT"] == "4001"
    assert environment["RAY_SERVE_HAPROXY_STATS_PORT"] == "4002"
    assert environment["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"] == "4100"


def test_haproxy_buffers_what_the_router_shall_see() -> None:
    """Every request pays for its buffers: no more than that."""
    router = LOCAL.router.model_copy(update={"seen_kib": 64})
    environment = fast_path_environment(LOCAL.model_copy(update={"router": router}))
    assert environment["RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE"] == "65536"
