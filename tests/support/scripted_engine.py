"""An engine's prefix cache without an engine: the events vLLM would send, in its format."""

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from kvstore.hashing import block_hashes, root_hash

BLOCK = 4
WEIGHTS = "weights"
_encoder = msgspec.msgpack.Encoder()


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """One of vLLM's events, which are maps with a `type`."""
    return {"type": kind, **fields}


def stored(
    hashes: Sequence[int | bytes],
    parent: int | bytes | None,
    tokens: Sequence[int],
    **fields: Any,
) -> dict[str, Any]:
    """`BlockStored` with everything that vLLM sends along."""
    return event(
        "BlockStored",
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=list(tokens),
        **{
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": None,
            "group_idx": 0,
            "session_id": None,
            **fields,
        },
    )


def batch(*events: dict[str, Any], at_s: float = 1.5) -> bytes:
    """`KVEventBatch`, packed."""
    return _encoder.encode([at_s, list(events), 0])


class ScriptedEngine:
    """Holds blocks of token sequences and says so, batch by batch.

    Args:
        keeps: Batches that can be replayed.
    """

    def __init__(self, keeps: int = 10_000) -> None:
        self.held: dict[bytes, int] = {}
        """Its own hashes, to ours."""
        self.sent: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._number = 0
        self._at_s = 0.0

    def store(self, tokens: Sequence[int]) -> tuple[int, bytes]:
        """Computes a prompt; announces the blocks it did not hold, from the first such on."""
        theirs = [
            hashlib.sha256(bytes(tokens[: (i + 1) * BLOCK])).digest()
            for i in range(len(tokens) // BLOCK)
        ]
        ours = block_hashes(
            root_hash(WEIGHTS, "", "", BLOCK), np.array(tokens, dtype=np.int32), BLOCK
        )
        first = next((i for i, block in enumerate(theirs) if block not in self.held), len(theirs))
        events = []
        if first < len(theirs):
            parent = theirs[first - 1] if first else None
            covered = tokens[first * BLOCK : len(theirs) * BLOCK]
            events = [stored(theirs[first:], parent, covered)]
            self.held.update(zip(theirs[first:], ours[first:], strict=True))
        return self._send(*events)

    def evict(self, place: int) -> tuple[int, bytes]:
        """Drops one of its blocks."""
        events = []
        if self.held:
            block = sorted(self.held)[place % len(self.held)]
            del self.held[block]
            events = [event("BlockRemoved", block_hashes=[block], medium="GPU", group_idx=0)]
        return self._send(*events)

    def clear(self) -> tuple[int, bytes]:
        """Drops everything."""
        self.held.clear()
        return self._send(event("AllBlocksCleared"))

    def restart(self) -> None:
        """Comes up again, empty, and counts from 0."""
        self.held.clear()
        self.sent.clear()
        self._number = 0

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        """Past batches from number `first` on, as far as it kept them."""
        return [(number, payload) for number, payload in self.sent if number >= first]

    def _send(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        self._at_s += 1.0
        sent = (self._number, batch(*events, at_s=self._at_s))
        self._number += 1
        self.sent.append(sent)
        return sent
