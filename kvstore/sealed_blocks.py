"""How KV blocks look outside LMCache's memory: under which name, and sealed against everything.

LMCache's own keys and values carry no check: a flipped byte, or bytes that somebody else wrote,
would become attention. Here each value is

    "PKVB" | version, 1 byte | 3 zeros | BLAKE3 of name and blocks, keyed with the cluster token
    the blocks

so that a value of another cluster, another key or another length, and one that was changed, is
no value at all. The name is a digest of everything that makes blocks differ. The cache salt stands
for model, adapter, weights and type; where a request has none, the model's name does.
"""

from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from kvstore.cluster_token import MIN_TOKEN_BYTES

VERSION: Final = 1
"""One more whenever older values mean something else."""
_MAGIC: Final = b"PKVB" + bytes([VERSION, 0, 0, 0])
_TAG_BYTES: Final = 32
SEAL_BYTES: Final = len(_MAGIC) + _TAG_BYTES
"""By which a sealed value is longer than its blocks."""
NAME_BYTES: Final = 20


@dataclass(frozen=True)
class BlockKey:
    """What LMCache tells one object apart by.

    Attributes:
        chunk_hash: Of the tokens of the chunk and all before it.
        model: Name of the model, as the engine has it.
        rank: Which rank's part of the blocks.
        group: Which layers' blocks.
        salt: vLLM's `cache_salt`; may be empty.
    """

    chunk_hash: bytes
    model: str
    rank: int
    group: int
    salt: str


class Seal:
    """Names and seals of one cluster.

    Args:
        token: The cluster token.

    Raises:
        ValueError: The token is shorter than `MIN_TOKEN_BYTES`.
    """

    def __init__(self, token: bytes) -> None:
        if len(token) < MIN_TOKEN_BYTES:
            raise ValueError(f"the cluster token needs at least {MIN_TOKEN_BYTES} bytes")
        self._name_key = blake3(token, derive_key_context="paceline kv names 1").digest()
        self._value_key = blake3(token, derive_key_context="paceline kv values 1").digest()

    def name(self, key: BlockKey) -> bytes:
        """Under which a value is kept: hex, which tells nobody anything."""
        digest = blake3(key=self._name_key)
        for part in (
            key.chunk_hash,
            b"" if key.salt else key.model.encode(),
            key.rank.to_bytes(8, "little"),
            key.group.to_bytes(8, "little"),
            key.salt.encode(),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest(NAME_BYTES).hex().encode()

    def sealed(self, name: bytes, blocks: memoryview) -> bytearray:
        """The value that holds these blocks under this name."""
        value = bytearray(SEAL_BYTES + len(blocks))
        value[: len(_MAGIC)] = _MAGIC
        value[len(_MAGIC) : SEAL_BYTES] = self._tag(name, blocks)
        value[SEAL_BYTES:] = blocks
        return value

    def opened(self, name: bytes, value: bytes, length: int) -> memoryview | None:
        """The blocks in a value, or None where it is not exactly what was sealed.

        Args:
            name: Under which it was found.
            value: What was found.
            length: Bytes that the blocks must have.
        """
        view = memoryview(value)
        if len(view) != SEAL_BYTES + length or view[: len(_MAGIC)] != _MAGIC:
            return None
        blocks = view[SEAL_BYTES:]
        # A forger learns nothing from how long this takes: the tag needs the whole value.
        return blocks if view[len(_MAGIC) : SEAL_BYTES] == self._tag(name, blocks) else None

    def _tag(self, name: bytes, blocks: memoryview) -> bytes:
        digest = blake3(key=self._value_key)
        digest.update(name)
        digest.update(blocks)
        return digest.digest(_TAG_BYTES)
