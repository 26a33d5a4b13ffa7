"""Routers learn by our names which blocks lie in a node's memory and in storage, within a bound."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
from vllm.distributed.kv_events import KVCacheEvent, KVEventBatch

from kvstore.hashing import block_hashes, root_hash
from kvstore.held_blocks import HeldBlocks, Naming, decode_events
from replicas.verifier.shared_blocks import MEMORY, STORAGE, BlockNews

BLOCK, BLOCKS = 32, 8
SALT = "ab" * 32
TOKENS = [i % 500 for i in range(BLOCK * BLOCKS)]


def request(salt: str = SALT, adapter: str = "") -> Any:
    """As vLLM has them; its hashes are of its own making."""
    return SimpleNamespace(
        block_hashes=[bytes([i]) * 32 for i in range(BLOCKS)],
        all_token_ids=TOKENS,
        cache_salt=salt,
        lora_request=SimpleNamespace(lora_name=adapter) if adapter else None,
    )


def chain(salt: str = SALT, adapter: str = "") -> list[int]:
    """Our names of the request's blocks."""
    root = root_hash("weights", adapter, salt, BLOCK)
    return block_hashes(root, np.array(TOKENS, np.int32), BLOCK)


def news(memory: int = 100, storage: int = 100) -> BlockNews:
    return BlockNews({MEMORY: memory, STORAGE: storage}, BLOCK)


def held(events: list[KVCacheEvent], blocks: HeldBlocks | None = None) -> HeldBlocks:
    """What a verifier's account makes of events that went through vLLM's publisher."""
    blocks = blocks or HeldBlocks(Naming("weights", BLOCK))
    batch = msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events))
    for event in decode_events(batch).events:
        blocks.apply(event)
    return blocks


def test_blocks_have_the_names_that_routers_give_them() -> None:
    """By tokens, salt and adapter, in both tiers."""
    for salt, adapter in ((SALT, ""), (SALT, "lora"), ("", "")):
        told = news()
        told.moved(request(salt, adapter), 0, BLOCK * BLOCKS)
        names = set(chain(salt, adapter))
        assert held(told.take()).tiers() == {"host": names, "storage": names}
        assert told.take() == []


def test_what_follows_hangs_on_what_was_told_before() -> None:
    """Chunk by chunk; and where that was never told, it is told along."""
    told = news()
    told.moved(request(), 0, 4 * BLOCK)
    told.moved(request(), 4 * BLOCK, 8 * BLOCK)
    late = news()
    late.moved(request(), 4 * BLOCK, 8 * BLOCK)
    for each in (told, late):
        blocks = held(each.take())
        assert blocks.tiers()["host"] == set(chain())
        assert blocks.unnamed == 0


def test_no_more_is_told_than_fits() -> None:
    """The oldest are taken back."""
    told = news(memory=6, storage=3)
    told.moved(request(), 0, BLOCK * BLOCKS)
    assert held(told.take()).tiers() == {"host": set(chain()[2:]), "storage": set(chain()[5:])}


def test_a_lost_memory_is_taken_back_and_storage_stays() -> None:
    """As after a restart of LMCache."""
    told = news()
    told.moved(request(), 0, BLOCK * BLOCKS)
    blocks = held(told.take())
    told.memory_is_lost()
    assert held(told.take(), blocks).tiers() == {"storage": set(chain())}
