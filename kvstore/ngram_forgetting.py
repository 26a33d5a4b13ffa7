"""A sharing domain is forgotten: its texts are removed everywhere, and stay out.

By a time: texts of the domain that were finished by then are removed from stream, outboxes and
indices, and left out wherever they may still come from. The times are kept in Redis until
every such text is too old anyhow, for workers that were away.
"""

from contextlib import suppress
from typing import Any, Final

import redis

from kvstore.errors import InvalidRecord
from kvstore.ngram_records import FORGET, Forget, NgramKeys, TextBatch, decode, encode

MAX_FORGOTTEN: Final = 16384
"""Domains that a worker remembers, the latest."""
PAGE: Final = 64


class ForgottenDomains:
    """Which texts of which domains are not to be taken in."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def add(self, domain: bytes, until_s: float) -> bool:
        """A domain is forgotten up to a time; says whether that is news."""
        if until_s <= self._until_s.get(domain, 0.0):
            return False
        self._until_s.pop(domain, None)
        self._until_s[domain] = until_s
        if len(self._until_s) > MAX_FORGOTTEN:
            del self._until_s[next(iter(self._until_s))]
        return True

    def covers(self, domain: bytes, born_s: float) -> bool:
        """Whether a text that was finished at `born_s` is forgotten."""
        return born_s <= self._until_s.get(domain, -1.0)


def forgotten_domains(client: redis.Redis, keys: NgramKeys) -> dict[bytes, float]:
    """The domains that were forgotten, and until when, wall clock, seconds."""
    entries: Any = client.hgetall(keys.forgotten)
    found = {}
    for domain, until_s in entries.items():
        with suppress(ValueError):
            found[domain] = float(until_s)
    return found


def forget_domain(
    client: redis.Redis, keys: NgramKeys, domain: bytes, now_s: float, ttl_s: float
) -> int:
    """Removes the texts of a domain from the stream, and has all workers do the same.

    Args:
        client: Of the cluster's Redis.
        keys: Of the cluster and its tokenizer.
        domain: Whose texts.
        now_s: Wall clock; texts that are finished later are not meant.
        ttl_s: How long a text may turn up somewhere.

    Returns:
        Entries removed from the stream.
    """
    times: Any = {domain: repr(now_s)}
    with client.pipeline(transaction=True) as pipe:
        pipe.hset(keys.forgotten, mapping=times)
        pipe.expire(keys.forgotten, max(1, int(2 * ttl_s)))
        pipe.xadd(keys.stream, {FORGET: encode(Forget(domain, now_s))})
        pipe.execute()
    removed, start = 0, "-"
    while True:
        page: Any = client.xrange(keys.stream, min=start, count=PAGE)
        if not page:
            return removed
        for entry_id, fields in page:
            with suppress(InvalidRecord):
                found = decode(fields, keys.fingerprint)
                if isinstance(found, TextBatch) and found.domain == domain:
                    removed += int(client.xdel(keys.stream, entry_id))
        start = f"({page[-1][0].decode()}"
