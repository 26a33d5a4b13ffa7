"""Which blocks this verifier put into its node's memory, and into what all nodes share; told to
routers like the blocks it holds itself.

LMCache tells of its blocks, too, but without salt or adapter, so that nobody could say whose they
are. What is told here is by the engine's own hashes. It is a hint: blocks that LMCache evicted
are told of until as many newer ones came, and what is told in vain costs a look-up.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent

if TYPE_CHECKING:
    from vllm.v1.request import Request

MEMORY: Final = "CPU"
STORAGE: Final = "STORAGE"
"""vLLM's names of tiers."""


@dataclass(frozen=True)
class Stored:
    """Blocks that follow each other in one sequence.

    Attributes:
        hashes: The engine's, one a block.
        parent: Of the block before them; None where they begin the sequence.
        tokens: Theirs.
        salt: The request's; may be empty.
        adapter: Name of the request's adapter; None without one.
    """

    hashes: Sequence[bytes]
    parent: bytes | None
    tokens: Sequence[int]
    salt: str
    adapter: str | None


class SharedBlocks:
    """What is told of one tier, bounded.

    Args:
        medium: `MEMORY` or `STORAGE`.
        max_blocks: As many as fit there; the oldest are forgotten first.
        block_tokens: Tokens of one block.
    """

    def __init__(self, medium: str, max_blocks: int, block_tokens: int) -> None:
        self._medium = medium
        self._max_blocks = max_blocks
        self._block_tokens = block_tokens
        self._told: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, block: bytes) -> bool:
        return block in self._told

    def stored(self, blocks: Stored) -> list[BlockStored | BlockRemoved]:
        """Events to tell that these are there now."""
        for block in blocks.hashes:
            self._told.pop(block, None)
            self._told[block] = None
        keys: list[Any] = [key for key in (blocks.adapter, blocks.salt) if key]
        first = tuple(keys) if blocks.parent is None and keys else None
        events: list[BlockStored | BlockRemoved] = [
            BlockStored(
                block_hashes=list(blocks.hashes),
                parent_block_hash=blocks.parent,
                token_ids=list(blocks.tokens),
                block_size=self._block_tokens,
                lora_id=None,
                medium=self._medium,
                lora_name=blocks.adapter,
                extra_keys=[first, *([None] * (len(blocks.hashes) - 1))],
            )
        ]
        if (gone := len(self._told) - self._max_blocks) > 0:
            events.append(self._removed([self._told.popitem(last=False)[0] for _ in range(gone)]))
        return events

    def lost(self) -> list[BlockStored | BlockRemoved]:
        """Events to tell that nothing is there any more."""
        told, self._told = list(self._told), OrderedDict()
        return [self._removed(told)] if told else []

    def _removed(self, hashes: list[bytes]) -> BlockRemoved:
        return BlockRemoved(block_hashes=hashes, medium=self._medium)


class BlockNews:
    """What routers are still to be told of both tiers.

    Args:
        max_blocks: By medium how many fit; one that is left out is not told of.
        block_tokens: Tokens of one block.
    """

    def __init__(self, max_blocks: Mapping[str, int], block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._tiers = {
            medium: SharedBlocks(medium, most, block_tokens) for medium, most in max_blocks.items()
        }
        self._events: list[KVCacheEvent] = []

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def memory_is_lost(self) -> None:
        """The node's LMCache server went, and its memory with it."""
        if MEMORY in self._tiers:
            self._events += self._tiers[MEMORY].lost()

    def moved(self, request: "Request", start: int, end: int) -> None:
        """A request put these tokens' blocks into LMCache, or took them out: they are there."""
        known, size = request.block_hashes, self._block_tokens
        for tier in self._tiers.values():
            first = start // size
            if first and known[first - 1] not in tier:
                first = 0  # What the blocks hang on has to be told, too.
            hashes = known[first : end // size]
            if not hashes:
                continue
            self._events += tier.stored(
                Stored(
                    hashes=hashes,
                    parent=known[first - 1] if first else None,
                    tokens=request.all_token_ids[first * size : (first + len(hashes)) * size],
                    salt=request.cache_salt or "",
                    adapter=request.lora_request.lora_name if request.lora_request else None,
                )
            )
