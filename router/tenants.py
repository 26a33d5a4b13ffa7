"""From a request's key and model to the root of its block hashes.

A verifier's front door gives each request a cache salt by the caller's sharing domain and the
model it names, and the engine hashes it into every block. The same derivation, from the same
table, makes the root here. Whose key is not known has no root: nothing can be warm for it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvstore.hashing import root_hash
from kvstore.keys import NO_TENANT, KeyTable, cache_salt, secret_of_domains, sharing_domain


@dataclass(frozen=True)
class TenantSettings:
    """What roots depend on.

    Attributes:
        model: Name of the model itself.
        adapters: Fingerprints of its adapters, by name.
        weights_fingerprint: Which weights are loaded.
        kv_format: How cached values were computed and are kept.
        block_tokens: Tokens of one block.
        keys: Who may ask; None where no keys are asked for.
        domain_secret: Of the config; empty where it names none.
        salted: Whether verifiers salt at all; a plain Serve application's do not.
        key_header: In which header the router is shown keys: `authorization` or `x-api-key`.
    """

    model: str
    adapters: Mapping[str, str]
    weights_fingerprint: str
    kv_format: str
    block_tokens: int
    keys: KeyTable | None = None
    domain_secret: bytes = field(default=b"", repr=False)
    salted: bool = True
    key_header: str = "authorization"


class Tenants:
    """The roots of one cluster. Bounded by its tenants times its models.

    Args:
        settings: What roots depend on.
    """

    def __init__(self, settings: TenantSettings) -> None:
        self._settings = settings
        self._secret = secret_of_domains(settings.keys, settings.domain_secret)
        # By digest: no time is spent on a key that would tell anything about others.
        self._tenants = dict(settings.keys.entries) if settings.keys else {}
        self._roots: dict[tuple[str, str], int] = {}

    def root_of(self, model: object, shown: str) -> int | None:
        """The root of a request's block hashes, or None where it can't be known.

        Args:
            model: The request's field of this name.
            shown: Value of the header with the key; empty where there is none.
        """
        settings = self._settings
        if not isinstance(model, str) or (
            model != settings.model and model not in settings.adapters
        ):
            return None
        tenant: str | None = NO_TENANT
        if settings.keys is not None:
            key = _bearer(shown)
            if settings.key_header == "x-api-key":
                key = shown.encode("latin-1", "replace")
            tenant = self._tenants.get(hashlib.sha256(key).digest())
        if tenant is None:
            return None
        root = self._roots.get((tenant, model))
        if root is None:
            root = self._roots[tenant, model] = self._root(tenant, model)
        return root

    def _root(self, tenant: str, model: str) -> int:
        settings = self._settings
        salt = ""
        if settings.salted:
            salt = cache_salt(
                sharing_domain(tenant, self._secret),
                model,
                settings.weights_fingerprint + settings.adapters.get(model, ""),
                settings.kv_format,
            )
        adapter = "" if model == settings.model else model
        return root_hash(settings.weights_fingerprint, adapter, salt, settings.block_tokens)


def _bearer(authorization: str) -> bytes:
    scheme, _, key = authorization.partition(" ")
    return key.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
