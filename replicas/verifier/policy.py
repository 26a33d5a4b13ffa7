"""What the front door of one verifier goes by; fixed while the verifier lives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kvstore.keys import KeyTable, cache_salt, secret_of_domains, sharing_domain
from replicas.verifier.request_speculation import SPECULATION


@dataclass(frozen=True)
class FrontDoorPolicy:
    """Everything the front door decides from.

    Args:
        vocab_size: Ids from 0 to one less than this are tokens.
        weights_fingerprint: Which weights are loaded.
        kv_format: How cached values were computed and are kept.
        adapters: Fingerprints of the adapters' weights, by name.
        keys: Who may ask; None lets everybody in, in one domain.
        domain_secret: Secret of the sharing domains. Empty derives it from the keys.
        model_names: The model and its adapters. Empty leaves unknown names to vLLM.
        speculation: Whether the engine verifies drafts.
        max_body_bytes: Largest body of a request.
        body_timeout_s: How long a body may take to arrive.
        max_sequences: Most answers of one request: prompts times `n`.
        xargs_allowed: Keys of `vllm_xargs` that clients may set; others are dropped.
        longest_draft: Most draft tokens that a request may ask for.
        explains_routes: Whether answers say what the router expected.
    """

    vocab_size: int
    weights_fingerprint: str
    kv_format: str
    adapters: Mapping[str, str] = field(default_factory=dict)
    keys: KeyTable | None = None
    domain_secret: bytes = field(default=b"", repr=False)
    model_names: frozenset[str] = frozenset()
    speculation: bool = False
    max_body_bytes: int = 8 << 20
    body_timeout_s: float = 60.0
    max_sequences: int = 128
    xargs_allowed: frozenset[str] = frozenset((SPECULATION,))
    longest_draft: int = 64
    explains_routes: bool = False

    @cached_property
    def _secret(self) -> bytes:
        return secret_of_domains(self.keys, self.domain_secret)

    def domain_of(self, tenant: str) -> str:
        """Hex name of a tenant's sharing domain."""
        return sharing_domain(tenant, self._secret)

    def salt_for(self, domain: str, model: str) -> str:
        """vLLM's `cache_salt` for requests of a sharing domain to `model`."""
        weights = self.weights_fingerprint + self.adapters.get(model, "")
        return cache_salt(domain, model, weights, self.kv_format)


@dataclass(frozen=True)
class Caller:
    """Who asks, once the front door has let them in.

    Args:
        tenant: From the key table, or `NO_TENANT` where no keys are asked for.
        domain: The tenant's sharing domain.
    """

    tenant: str
    domain: str
