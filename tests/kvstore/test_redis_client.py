"""How processes reach Redis, and what they say when they can't."""

from pathlib import Path

import pytest
from redis_server import RedisServer

from configs.schema import ClusterConfig
from kvstore.errors import StoreUnavailable
from kvstore.redis_client import (
    RedisSettings,
    connect,
    connect_blocking,
    password_file,
    redis_settings,
    store_errors,
)


def config(tmp_path: Path, **redis: object) -> ClusterConfig:
    """A cluster whose run folder is in `tmp_path`."""
    return ClusterConfig.model_validate(
        {
            "name": "c",
            "model": {"name": "m", "source": "org/m"},
            "redis": redis,
            "folders": {"run": str(tmp_path)},
        }
    )


def test_a_private_redis_is_found_by_its_cluster(tmp_path: Path) -> None:
    """Without a URL, the port comes from the config and the password from the run folder."""
    file = password_file(tmp_path / "c")
    file.parent.mkdir(parents=True)
    file.write_text("secret\n")
    assert redis_settings(config(tmp_path)) == RedisSettings("redis://127.0.0.1:6480", "secret")


def test_a_private_redis_that_does_not_run_is_named(tmp_path: Path) -> None:
    """Without a run, the message says which cluster has none and how to start it."""
    with pytest.raises(StoreUnavailable, match=r"cluster `c`.*`paceline up`"):
        redis_settings(config(tmp_path))


def test_an_external_redis_gets_its_password_from_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config names the secret; the settings hold it, and their text doesn't."""
    asked = config(tmp_path, url="rediss://kv.example:6379", password={"env": "KV_PASSWORD"})
    with pytest.raises(StoreUnavailable, match=r"kv\.example:6379.*KV_PASSWORD.*redis\.password"):
        redis_settings(asked)
    monkeypatch.setenv("KV_PASSWORD", "hush")
    settings = redis_settings(asked)
    assert settings.password == "hush"
    assert "hush" not in repr(settings)


def test_rediss_means_tls_with_checked_certificates() -> None:
    """A rediss:// URL never talks in the clear and never to a stranger."""
    client = connect_blocking(RedisSettings("rediss://kv.example:6379"))
    connection = client.connection_pool.make_connection()
    assert type(connection).__name__ == "SSLConnection"
    assert (connection.cert_reqs.name, connection.check_hostname) == ("CERT_REQUIRED", True)


def test_an_impossible_address_is_named() -> None:
    """A port that is none shows up when settings are made, not as a traceback later."""
    with pytest.raises(StoreUnavailable, match=r"redis\.url"):
        RedisSettings("redis://host:port")


async def test_a_wrong_password_is_told_apart_and_not_told(redis_server: RedisServer) -> None:
    """Refused is not unreachable, and neither password shows."""
    wrong = RedisSettings(redis_server.settings.url, "not-the-password")
    with pytest.raises(StoreUnavailable, match="refuses us") as refused:
        async with connect(wrong) as client:
            with store_errors(wrong):
                await client.ping()
    assert "not-the-password" not in str(refused.value)
    with (
        pytest.raises(StoreUnavailable, match="refuses us"),
        connect_blocking(wrong) as blocking,
        store_errors(wrong),
    ):
        blocking.ping()


def test_a_full_redis_is_told_apart(redis_server: RedisServer) -> None:
    """A Redis that answers with an error is quoted."""
    with redis_server.client() as client:
        client.config_set("maxmemory", "1")
        with (
            pytest.raises(StoreUnavailable, match=r"it answers: .*memory"),
            store_errors(redis_server.settings),
        ):
            client.set("k", "v")
