"""What an operator does to the fleet's n-grams: corpora in and out, and a tenant forgotten."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import redis
from tokenizers import Tokenizer

from cluster.errors import ClusterError
from cluster.models import resolve_source
from configs.schema import ClusterConfig
from configs.secrets import read_secret
from configs.sections.drafting import NgramConfig
from kvstore import corpora
from kvstore.fingerprint import tokenizer_fingerprint
from kvstore.keys import NO_TENANT, parse_keys, sharing_domain
from kvstore.ngram_forgetting import forget_domain
from kvstore.ngram_records import NgramKeys
from kvstore.redis_client import connect_blocking, redis_settings, store_errors

MAX_FILE_BYTES = 256 << 20


class FleetNgrams:
    """The n-grams of one cluster, from outside.

    Args:
        config: The cluster's.

    Raises:
        ClusterError: It has no draft workers of kind `ngram_index`.
    """

    def __init__(self, config: ClusterConfig) -> None:
        split = config.drafting.split
        if split is None or "ngram_index" not in split.workers.kinds:
            raise ClusterError(
                f"cluster `{config.name}` has no n-gram index: add `ngram_index` to "
                "drafting.split.workers.kinds"
            )
        self._config = config
        self._ngram: NgramConfig = split.workers.ngram
        self._source = Path(resolve_source(config.model.source, config.folders.models))

    def add(self, file: Path, name: str, tenant: str | None) -> corpora.Corpus:
        """Makes a corpus of a text file, or replaces the one of this name.

        Args:
            file: UTF-8 text.
            name: What it is listed by.
            tenant: Whose requests may be drafted from it; None: everybody's.

        Raises:
            ClusterError: The file can't be read, or the model has no tokenizer.json here.
            CorpusRefused: There is no room, or no text.
            StoreUnavailable: Redis did not take it.
        """
        domain = corpora.EVERYBODY if tenant is None else self._domain_of(tenant)
        ids = self._tokenizer().encode(_read(file), add_special_tokens=False).ids
        with self._client() as client:
            return corpora.add_corpus(
                client,
                self._keys(),
                name,
                np.array(ids, dtype=np.int32),
                domain=domain,
                tenant=tenant or "",
                max_tokens=corpora.max_tokens(self._ngram.corpus_mib << 20),
            )

    def list(self) -> tuple[corpora.Corpus, ...]:
        """All corpora, in the order in which they were added.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        with self._client() as client:
            return corpora.list_corpora(client, self._keys())

    def remove(self, name: str) -> bool:
        """Removes a corpus; says whether there was one.

        Raises:
            StoreUnavailable: Redis can't be asked.
        """
        with self._client() as client:
            return corpora.remove_corpus(client, self._keys(), name)

    def forget(self, tenant: str) -> tuple[int, int]:
        """Removes what a tenant's requests left, and its corpora, from Redis and all workers.

        Returns:
            Entries of the stream, and corpora, that were removed.

        Raises:
            ClusterError: All requests share one domain: nothing is the tenant's alone.
            StoreUnavailable: Redis can't be asked.
        """
        if self._ngram.sharing == "cluster":
            raise ClusterError(
                "with `sharing: cluster` texts are not kept by tenant; set it to `tenant`, or "
                "restart the draft workers"
            )
        domain, keys = self._domain_of(tenant), self._keys()
        with self._client() as client:
            entries = forget_domain(client, keys, domain, time.time(), self._ngram.ttl_s)
            return entries, corpora.remove_corpora_of(client, keys, domain)

    def _domain_of(self, tenant: str) -> bytes:
        door = self._config.front_door
        keys = parse_keys(read_secret(door.keys)) if door.keys else None
        if keys is None and tenant != NO_TENANT:
            raise ClusterError(
                "this cluster asks for no keys, so that it has no tenants: all requests share one "
                'domain; name it with ""'
            )
        secret = read_secret(door.domain_salt).encode() if door.domain_salt else b""
        if not secret and keys is not None:
            secret = keys.derived_secret()
        return bytes.fromhex(sharing_domain(tenant, secret))

    def _keys(self) -> NgramKeys:
        fingerprint = (
            tokenizer_fingerprint(self._source) if self._source.is_dir() else str(self._source)
        )
        return NgramKeys(self._config.name, fingerprint)

    def _tokenizer(self) -> Tokenizer:
        file = self._source / "tokenizer.json"
        if not file.is_file():
            raise ClusterError(f"no {file} on this machine: a corpus needs the model's tokenizer")
        return Tokenizer.from_file(str(file))

    @contextmanager
    def _client(self) -> Iterator[redis.Redis]:
        settings = redis_settings(self._config)
        with store_errors(settings), connect_blocking(settings) as client:
            yield client


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ClusterError(f"{file} has more than {MAX_FILE_BYTES >> 20} MiB; split it")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{file} is not UTF-8 text") from error
