"""Which blocks an engine holds, in our names: the one true account, kept beside the engine.

The engine tells of blocks by hashes of its own. Each event that stores blocks brings their
tokens and the hash of the block before them, so their names in our scheme follow from the
parent's. Removals bring nothing but the engine's hash, so the map must be kept here:

    engine hash, its last 64 bits -> our hash        one map a tier

Never more is claimed than the engine holds. What can't be named (a parent that is unknown,
pictures in the prompt, blocks of another size, a second group of layers) is left out and
counted, and so is everything that follows it. Two copies of a block count as one, and are
gone with the first of them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from kvstore.hash_map import HashMap
from kvstore.hashing import Hashes, Naming, block_hashes, root_hash
from kvstore.kv_messages import DEVICE, HOST, STORAGE

EngineHash = int | bytes
MEDIA: Final = {None: DEVICE, "GPU": DEVICE, "CPU": HOST, "STORAGE": STORAGE}
"""vLLM's names of tiers (vllm/distributed/kv_events.py, 0.32)."""
MAX_TOKENS_AN_EVENT: Final = 1 << 24
_64_BITS: Final = (1 << 64) - 1


class BlockStored(msgspec.Struct, tag=True):
    """vLLM's event of this name, as far as we read it."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: Annotated[list[int], Meta(max_length=MAX_TOKENS_AN_EVENT)]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """vLLM's event of this name, as far as we read it."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """vLLM's event of this name."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """vLLM's `KVEventBatch`."""

    ts: float
    events: list[Event]


decode_events: Final = msgspec.msgpack.Decoder(EventBatch).decode
"""A batch of vLLM's events; raises `msgspec.MsgspecError` for anything else."""


class HeldBlocks:
    """The account of one engine. Bounded by what the engine can hold.

    Args:
        naming: What our names depend on.

    Attributes:
        unnamed: Blocks that were left out.
    """

    def __init__(self, naming: Naming) -> None:
        self.unnamed = 0
        self._naming = naming
        self._ours: dict[str, HashMap] = {}
        self._changes: dict[str, dict[int, bool]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._ours.values())

    def tiers(self) -> dict[str, set[int]]:
        """What is held, in our names, by tier."""
        return {
            tier: set(blocks.values().tolist())
            for tier, blocks in self._ours.items()
            if len(blocks)
        }

    def take_changes(self) -> dict[str, tuple[list[int], list[int]]]:
        """By tier the blocks that came and that went since the last call."""
        changes, self._changes = self._changes, {}
        return {
            tier: (
                [ours for ours, is_held in tier_changes.items() if is_held],
                [ours for ours, is_held in tier_changes.items() if not is_held],
            )
            for tier, tier_changes in changes.items()
        }

    def apply(self, event: Event) -> bool:
        """Takes one event in.

        Returns:
            False where everything is gone, so that an account of changes makes no sense.
        """
        if isinstance(event, AllBlocksCleared):
            self.clear()
            return False
        # Where layers differ (sliding windows), each group tells of its own blocks. The first
        # group's stand for all.
        if event.group_idx not in (None, 0) or (tier := MEDIA.get(event.medium)) is None:
            self.unnamed += len(event.block_hashes) if isinstance(event, BlockStored) else 0
        elif isinstance(event, BlockStored):
            self._stored(tier, event)
        else:
            self._removed(tier, event.block_hashes)
        return True

    def clear(self) -> None:
        """Forgets everything, changes included."""
        self._ours.clear()
        self._changes.clear()

    def _stored(self, tier: str, event: BlockStored) -> None:
        names = self._names(tier, event)
        if names is None:
            self.unnamed += len(event.block_hashes)
            return
        if (blocks := self._ours.get(tier)) is None:
            blocks = self._ours[tier] = HashMap()
        is_new = blocks.insert(_numbers(event.block_hashes), names)
        self._changes.setdefault(tier, {}).update(dict.fromkeys(names[is_new].tolist(), True))

    def _removed(self, tier: str, removed: Sequence[EngineHash]) -> None:
        if (blocks := self._ours.get(tier)) is not None:
            gone = blocks.remove(_numbers(removed)).tolist()
            self._changes.setdefault(tier, {}).update(dict.fromkeys(gone, False))

    def _names(self, tier: str, event: BlockStored) -> Hashes | None:
        """Our names of the blocks of an event, or None where they have none."""
        size, count = self._naming.block_tokens, len(event.block_hashes)
        if event.block_size != size or len(event.token_ids) != size * count:
            return None
        if any(_is_media(key) for keys in event.extra_keys or () for key in keys or ()):
            return None
        if event.parent_block_hash is None:
            above = self._root(event)
        else:
            blocks = self._ours.get(tier)
            known = blocks.get(_number(event.parent_block_hash)) if blocks is not None else None
            if known is None:
                return None
            above = known
        hashes = block_hashes(above, np.array(event.token_ids, dtype=np.int32), size)
        return np.array(hashes, dtype=np.uint64)

    def _root(self, event: BlockStored) -> int:
        """Its keys are the adapter's name, if there is one, and the cache salt."""
        keys = list((event.extra_keys[0] if event.extra_keys else None) or ())
        adapter = event.lora_name or ""
        if adapter and keys and keys[0] == adapter:
            del keys[0]
        salt = keys[0] if keys and isinstance(keys[0], str) else ""
        return root_hash(self._naming.weights_fingerprint, adapter, salt, self._naming.block_tokens)


def _number(theirs: EngineHash) -> int:
    """An engine's hash as 64 bits: vLLM, too, cuts it so where it tells integers."""
    if isinstance(theirs, bytes):
        theirs = int.from_bytes(theirs[-8:], "big")
    return theirs & _64_BITS


def _numbers(theirs: Sequence[EngineHash]) -> Hashes:
    return np.fromiter(map(_number, theirs), np.uint64, len(theirs))


def _is_media(key: object) -> bool:
    """Pictures and the like are keyed by (identifier, offset), embeddings by a digest."""
    return not isinstance(key, str)
