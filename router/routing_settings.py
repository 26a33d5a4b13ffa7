"""What a prefix-aware router goes by, and what it loads before it can: files, secrets, weights.

It travels as JSON types in Serve's `request_router_kwargs`: no secret is in it, only where
secrets are kept.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from configs.schema import ClusterConfig
from configs.secrets import read_secret
from kvstore.cluster_token import cluster_token
from kvstore.errors import NoClusterToken
from kvstore.keys import parse_keys
from kvstore.kv_identity import adapter_fingerprints, kv_format, source_fingerprint
from kvstore.kv_messages import KvCodec
from kvstore.prefix_index import BYTES_A_BLOCK
from router.prompt import PromptReader, PromptSettings
from router.tenants import TenantSettings

MIB = 1 << 20
SESSION_HEADER = "x-session-id"


@dataclass(frozen=True)
class Ready:
    """What was loaded.

    Attributes:
        reader: Tokenizes.
        tenants: What roots of block hashes depend on.
        codec: Of the cluster's token; None where verifiers tell nothing.
    """

    reader: PromptReader
    tenants: TenantSettings
    codec: KvCodec | None


@dataclass(frozen=True)
class PrefixSettings:
    """What a prefix-aware router goes by.

    Attributes:
        source: The model's folder, or a hub id.
        model: What clients send as `model`.
        block_tokens: Tokens of one KV block.
        max_blocks: Bound of the index, entries.
        config: The whole cluster; None in a Serve application that is not paceline's.
        shown_header: The one request header that HAProxy shows to the router.
        batch_weight: What a second of waiting counts for where a request can wait.
    """

    source: str
    model: str
    block_tokens: int
    max_blocks: int
    config: ClusterConfig | None = field(default=None, repr=False)
    shown_header: str = SESSION_HEADER
    batch_weight: float = 0.25

    @classmethod
    def from_kwargs(
        cls,
        source: str,
        model: str = "",
        block_tokens: int = 16,
        index_mib: int = 256,
        config: dict[str, Any] | None = None,
    ) -> Self:
        """From Serve's `request_router_kwargs`; with a `config`, it says the rest."""
        if config is None:
            return cls(source, model, block_tokens, index_mib * MIB // BYTES_A_BLOCK)
        parsed = ClusterConfig.model_validate(config)
        return cls(
            source,
            parsed.model.name,
            parsed.block_tokens,
            parsed.router.index_mib * MIB // BYTES_A_BLOCK,
            parsed,
            parsed.shown_header,
            parsed.router.batch_weight,
        )

    def load(self) -> Ready:
        """Reads files and secrets and loads the tokenizer; takes seconds.

        Raises:
            SecretError: A secret that the config names can't be had.
            KeysFileError: The keys file can't be used.
            Exception: The tokenizer can't be loaded.
        """
        fingerprint = source_fingerprint(self.source)
        config = self.config
        if config is None:
            tenants = TenantSettings(
                self.model, {}, fingerprint, "", self.block_tokens, salted=False
            )
            return Ready(PromptReader(PromptSettings(self.source)), tenants, None)
        door, model = config.front_door, config.model
        tenants = TenantSettings(
            model.name,
            adapter_fingerprints(config),
            fingerprint,
            kv_format(config),
            self.block_tokens,
            parse_keys(read_secret(door.keys)) if door.keys else None,
            read_secret(door.domain_salt).encode() if door.domain_salt else b"",
            key_header=self.shown_header,
        )
        reader = PromptReader(
            PromptSettings(self.source, model.chat_template, model.trust_remote_code)
        )
        return Ready(reader, tenants, _codec(config))


def _codec(config: ClusterConfig) -> KvCodec | None:
    if not config.verifiers.kv_cache.prefix_caching:
        return None
    try:
        return KvCodec(cluster_token(config))
    except NoClusterToken:
        return None  # The verifiers have none either, and say so.
