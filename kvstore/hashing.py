"""Our own names of KV blocks: the same in every process, on every node, in every Python.

A block's hash says which tokens are in it and, because it is chained, which ones are before
it, and under which weights, adapter and sharing domain they were computed:

    root    = BLAKE2b-64("paceline blocks" 0 scheme, block tokens, weights, adapter, salt)
    hash[0] = BLAKE2b-64(root    | token ids of block 0, int32 little-endian)
    hash[i] = BLAKE2b-64(hash[i-1] | token ids of block i)

Only whole blocks have one. vLLM's own hashes depend on its version, its algorithm and its
hash seed; `kvstore/held_blocks.py` maps them to these.

64 bits: among 10 million blocks two are equal by chance once in 370,000 clusters (n^2 / 2^65),
and what would follow is a wrong hint, not a wrong answer.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SCHEME: Final = 1
"""One more whenever the same tokens get other hashes. Verifiers and routers compare it."""
HASH_BYTES: Final = 8

Hashes = NDArray[np.uint64]
Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Naming:
    """What our names of an engine's blocks depend on.

    Attributes:
        weights_fingerprint: Which weights are loaded.
        block_tokens: Tokens of one block.
    """

    weights_fingerprint: str
    block_tokens: int


def root_hash(weights_fingerprint: str, adapter: str, salt: str, block_tokens: int) -> int:
    """Where the chain of one kind of request begins.

    Args:
        weights_fingerprint: Which weights are loaded.
        adapter: Name of the LoRA adapter; empty for the model itself.
        salt: vLLM's `cache_salt` of the request, which stands for its sharing domain; may be
            empty.
        block_tokens: Tokens of one block.
    """
    digest = hashlib.blake2b(b"paceline blocks\0", digest_size=HASH_BYTES)
    for part in (str(SCHEME), str(block_tokens), weights_fingerprint, adapter, salt):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return int.from_bytes(digest.digest(), "little")


def block_hashes(root: int, tokens: Tokens, block_tokens: int) -> list[int]:
    """The hashes of all whole blocks of a sequence, the first block first.

    Args:
        root: From `root_hash`, or the hash of the block before these tokens.
        tokens: [tokens] int32.
        block_tokens: Tokens of one block.

    Returns:
        [tokens // block_tokens] integers of 64 bits.
    """
    packed = tokens.astype("<i4", copy=False).tobytes()
    step, blake2b = 4 * block_tokens, hashlib.blake2b
    last = root.to_bytes(HASH_BYTES, "little")
    chain = []
    for start in range(0, len(packed) - step + 1, step):
        last = blake2b(last + packed[start : start + step], digest_size=HASH_BYTES).digest()
        chain.append(last)
    hashes: list[int] = np.frombuffer(b"".join(chain), dtype="<u8").tolist()
    return hashes


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Hashes as they travel: little-endian, 8 bytes each."""
    return np.fromiter(hashes, dtype="<u8").tobytes()


def unpack_hashes(packed: bytes) -> list[int]:
    """Hashes as they came.

    Raises:
        ValueError: The bytes are not whole hashes.
    """
    hashes: list[int] = np.frombuffer(packed, dtype="<u8").tolist()
    return hashes
