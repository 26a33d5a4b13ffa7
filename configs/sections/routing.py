"""Who may ask, and who answers."""

from typing import Literal

from pydantic import Field

from configs.sections.values import SecretRef, Section


class RouterConfig(Section):
    """Which verifier gets a request."""

    policy: Literal["least_loaded", "prefix_aware"] = Field(
        "least_loaded",
        description="`least_loaded`: fewest requests in flight. `prefix_aware`: soonest first "
        "token, counting the KV blocks that each verifier holds (docs/routing.md); of use where "
        "verifiers are several and prompts begin alike.",
    )
    token: SecretRef | None = Field(
        None,
        description="`prefix_aware` only: secret of at least 16 bytes by which verifiers and "
        "routers know each other. None: that of `drafting.split`, or the one that `paceline up` "
        "makes.",
    )
    index_mib: int = Field(
        256,
        ge=1,
        le=1048576,
        description="`prefix_aware` only: memory of the index of KV blocks, MiB a router. Blocks "
        "that find no room count as not cached.",
    )
    shown_header: Literal["authorization", "x-api-key", "x-session-id"] | None = Field(
        None,
        description="The one request header that HAProxy shows to the router. With keys it must "
        "be the one they come in, or nobody's prefix is known. None: `authorization` where "
        "`front_door.keys` asks for keys, `x-session-id` where it does not.",
    )
    batch_weight: float = Field(
        0.25,
        gt=0,
        le=1,
        description="`prefix_aware` only: what a second before its first token counts for a "
        "request that can wait (`service_tier: flex`), against a second that it costs others.",
    )
    seen_kib: int = Field(
        256,
        ge=16,
        le=16384,
        description="How much of a request's body the router is shown, KiB; 256 are about 60,000 "
        "tokens of English. HAProxy's buffers are as large, and every request pays for that: about "
        "1.5 ms a MiB. A longer body is routed by its beginning.",
    )
    explain: bool = Field(
        False,
        description="Answers carry `x-paceline-route`: which verifier, and what the router "
        "expected there. For debugging: it tells clients how busy verifiers are.",
    )


class FrontDoorConfig(Section):
    """Who may ask, and how much at once."""

    keys: SecretRef | None = Field(
        None,
        description="API keys, one `TENANT KEY` or `TENANT sha256:HEX` a line. None: no key is "
        "asked for and all requests share one domain.",
    )
    domain_salt: SecretRef | None = Field(
        None,
        description="Secret from which tenants' sharing domains are derived, the same on every "
        "verifier. None: derived from the keys themselves.",
    )
    max_body_mib: float = Field(8, gt=0, le=64, description="Largest request body, MiB.")
