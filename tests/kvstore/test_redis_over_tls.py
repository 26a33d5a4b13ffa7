"""Redis over TLS, with a real server and a certificate of its own authority.

Which authorities are trusted is OpenSSL's matter; `SSL_CERT_FILE` adds one, as operators do.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import missing
from redis_server import RedisServer

from kvstore.block_stores import RedisStore
from kvstore.errors import StoreUnavailable
from kvstore.redis_client import RedisSettings, connect_blocking, store_errors


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself; its key lies beside it."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=redis.test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "server.key"), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(scope="module")
def encrypted(
    certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisSettings]:
    """How to reach a Redis that talks nothing but TLS."""
    if shutil.which("redis-server") is None:
        missing("redis-server is missing: `make redis`")
    server = RedisServer(tmp_path_factory.mktemp("redis"), certificate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(certificate))
        server.start()
    yield server.settings
    server.kill()


def test_blocks_go_over_tls(
    encrypted: RedisSettings, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its authority is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    store = RedisStore(encrypted, "test:", ttl_s=60)
    assert store.put(b"a", bytes(1 << 20))
    assert store.get(b"a") == bytes(1 << 20)
    store.close()


def test_a_stranger_s_certificate_is_refused(encrypted: RedisSettings) -> None:
    """And the reason is said."""
    store = RedisStore(encrypted, "test:", ttl_s=60)
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        store.put(b"a", b"secret")
    store.close()


def test_without_tls_nothing_is_said(encrypted: RedisSettings) -> None:
    """A client that was told `redis://` gets nowhere."""
    plain = RedisSettings(encrypted.url.replace("rediss://", "redis://"), encrypted.password)
    with connect_blocking(plain) as client, pytest.raises(StoreUnavailable), store_errors(plain):
        client.ping()
