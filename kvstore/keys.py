"""Who may ask, and in which sharing domain: API keys, tenants, cache salts.

A keys file holds one `TENANT KEY` or `TENANT sha256:HEX` a line. Keys are hashed as
they are read and compared in constant time. What a tenant's requests may share
with each other (KV blocks, n-grams) is salted with a value that the server derives
from the tenant; nothing a client sends has a part in it except the model it names.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from kvstore.errors import KeysFileError

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASHED_KEY = re.compile(r"sha256:[0-9a-fA-F]{64}")
_PLAIN_KEY = re.compile(r"[!-~]+")

NO_TENANT = ""
"""The tenant of everybody where no keys are asked for; no line of a keys file can name it."""


@dataclass(frozen=True)
class KeyTable:
    """Tenants by the SHA-256 of their keys, in the order of the file."""

    entries: tuple[tuple[bytes, str], ...] = field(repr=False)

    def tenant_of(self, key: bytes) -> str | None:
        """The tenant whose key this is, or None; takes as long for a wrong key as for a right."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, tenant in self.entries:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def derived_secret(self) -> bytes:
        """A domain secret from the keys themselves: the same wherever the same keys are."""
        digests = b"".join(sorted(digest for digest, _ in self.entries))
        return hashlib.sha256(b"paceline domain secret\0" + digests).digest()


def parse_keys(text: str) -> KeyTable:
    """The keys of a keys file. Empty lines and lines that start with `#` count for nothing.

    Args:
        text: What the file holds.

    Raises:
        KeysFileError: A line is not `TENANT KEY` or `TENANT sha256:HEX`, a key stands
            there twice, or there is none at all. The message never quotes the file.
    """
    entries: list[tuple[bytes, str]] = []
    lines: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise KeysFileError(number, "must be `TENANT KEY` or `TENANT sha256:HEX`")
        tenant, key = words
        if not _TENANT.fullmatch(tenant):
            raise KeysFileError(
                number,
                "the tenant must be 1-64 letters, digits, dots, dashes or underscores, the first "
                "a letter or digit",
            )
        digest = _digest(key, number)
        if (first := lines.setdefault(digest, number)) != number:
            raise KeysFileError(number, f"has the same key as line {first}")
        entries.append((digest, tenant))
    if not entries:
        raise KeysFileError(0, "holds no key; leave it out of the config to ask for none")
    return KeyTable(tuple(entries))


def _digest(key: str, line: int) -> bytes:
    if _HASHED_KEY.fullmatch(key):
        return bytes.fromhex(key.removeprefix("sha256:"))
    if key.startswith("sha256:"):
        raise KeysFileError(line, "`sha256:` must be followed by 64 hexadecimal digits")
    if not _PLAIN_KEY.fullmatch(key):
        raise KeysFileError(line, "the key must be printable ASCII")
    return hashlib.sha256(key.encode()).digest()


def secret_of_domains(keys: KeyTable | None, given: bytes) -> bytes:
    """The secret that sharing domains are derived from: the given one, or the keys' own.

    Args:
        keys: None where no keys are asked for.
        given: Of the config; empty where it names none.
    """
    return given if given or keys is None else keys.derived_secret()


def sharing_domain(tenant: str, salt_secret: bytes) -> str:
    """Hex name of the domain whose requests may share what they computed.

    Args:
        tenant: From the key table, or `NO_TENANT`.
        salt_secret: The same on every verifier and in the router; unknown to clients.
    """
    return hmac.new(salt_secret, b"paceline domain\0" + tenant.encode(), hashlib.sha256).hexdigest()


def cache_salt(domain: str, model: str, weights: str, kv_format: str) -> str:
    """vLLM's `cache_salt` for one request, 64 hex digits.

    LMCache tells models apart by a local path and nothing else, so everything that
    makes one KV block different from another of the same tokens goes in. Fields are
    length-prefixed: no two sets of fields run together to the same bytes.

    Args:
        domain: From `sharing_domain`.
        model: What the request names as `model`: the model or an adapter.
        weights: Fingerprints of the weights that answer, an adapter's included.
        kv_format: From `kvstore/kv_identity.py`: how the values were computed and are kept.
    """
    digest = hashlib.sha256(b"paceline cache salt\0")
    for part in (domain, model, weights, kv_format):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()
