"""How this cluster's processes reach Redis: where, with which password, and how patiently.

Short timeouts and one retry: what Redis knows is a hint, and nobody waits long for
a hint. Whatever the client raises leaves here as `StoreUnavailable`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from configs.errors import SecretError
from configs.schema import ClusterConfig
from configs.secrets import read_secret
from kvstore.errors import StoreUnavailable

TIMEOUT_S = 1.0  # To connect, and to wait for each answer.
RETRIES = 1
RETRY_AFTER_S = 0.05


@dataclass(frozen=True)
class RedisSettings:
    """Where Redis is, and the password to it.

    Attributes:
        url: redis:// or rediss:// (TLS, certificates checked), without a password.
        password: None where none is asked for. Never shown.
    """

    url: str
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuses a URL that names no port a client could use.

        Raises:
            StoreUnavailable: it does.
        """
        try:
            _ = urlsplit(self.url).port
        except ValueError as error:
            raise StoreUnavailable("redis.url", f"no usable address: {error}", "mend it") from error

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def redis_settings(config: ClusterConfig) -> RedisSettings:
    """How to reach the Redis of this cluster: its private one, or the one it names.

    Raises:
        StoreUnavailable: the password cannot be read; for a private Redis, that means
            none runs on this machine.
    """
    wanted = config.redis
    if wanted.url is None:
        private = RedisSettings(f"redis://127.0.0.1:{config.ports.redis}")
        file = password_file(config.folders.run.expanduser() / config.name)
        try:
            return RedisSettings(private.url, file.read_text().strip())
        except OSError as error:
            raise StoreUnavailable(
                private.where,
                f"no private Redis of cluster `{config.name}` runs here ({error})",
                "start the cluster with `paceline up`",
            ) from error
    try:
        password = read_secret(wanted.password) if wanted.password else None
    except SecretError as error:
        raise StoreUnavailable(
            RedisSettings(wanted.url).where, f"no password: {error}", "see redis.password"
        ) from error
    return RedisSettings(wanted.url, password)


def password_file(run_folder: Path) -> Path:
    """Where a private Redis' password is kept, in the run folder of its cluster."""
    return run_folder / "redis" / "password"


def connect(settings: RedisSettings) -> "redis.asyncio.Redis":
    """An asyncio client; it connects when it is first used, and the caller closes it."""
    retry = AsyncRetry(ConstantBackoff(RETRY_AFTER_S), RETRIES)
    return redis.asyncio.Redis.from_url(settings.url, retry=retry, **_options(settings))


def connect_blocking(settings: RedisSettings) -> redis.Redis:
    """A client for commands and threads; it connects when it is first used."""
    retry = Retry(ConstantBackoff(RETRY_AFTER_S), RETRIES)
    return redis.Redis.from_url(settings.url, retry=retry, **_options(settings))


def _options(settings: RedisSettings) -> dict[str, Any]:
    return {
        "password": settings.password,
        "socket_connect_timeout": TIMEOUT_S,
        "socket_timeout": TIMEOUT_S,
    }


@contextmanager
def store_errors(settings: RedisSettings) -> Iterator[None]:
    """Turns whatever a Redis client raises inside into `StoreUnavailable`."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise StoreUnavailable(
            settings.where, f"it refuses us: {error}", "see redis.password"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise StoreUnavailable(settings.where, str(error), "is it running?") from error
    except redis.RedisError as error:
        raise StoreUnavailable(settings.where, f"it answers: {error}", "see its log") from error
