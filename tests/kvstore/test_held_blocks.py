"""Events of an engine become our names, and what has none is left out."""

import msgspec
import numpy as np
import pytest
from scripted_engine import BLOCK, WEIGHTS, batch, event, stored

from kvstore.hashing import Naming, block_hashes, root_hash
from kvstore.held_blocks import HeldBlocks, decode_events
from kvstore.kv_account import KvAccount, Taken

TOKENS = list(range(3 * BLOCK))
NAMING = Naming(WEIGHTS, BLOCK)


def account(*events: dict[str, object]) -> HeldBlocks:
    """An account that has taken these in."""
    held = HeldBlocks(NAMING)
    for one in decode_events(batch(*events)).events:
        held.apply(one)
    return held


def names(salt: str = "", adapter: str = "") -> list[int]:
    root = root_hash(WEIGHTS, adapter, salt, BLOCK)
    return block_hashes(root, np.array(TOKENS, dtype=np.int32), BLOCK)


def test_vllms_own_batches_are_read() -> None:
    """Encoded by vLLM's classes, with everything they carry."""
    from vllm.distributed.kv_events import BlockStored, KVEventBatch

    theirs = BlockStored([1, b"2", 3], None, TOKENS, BLOCK, None, "GPU", None)
    held = HeldBlocks(NAMING)
    for one in decode_events(msgspec.msgpack.encode(KVEventBatch(1.0, [theirs]))).events:
        held.apply(one)
    assert held.tiers() == {"device": set(names())}


def test_salt_and_adapter_are_in_the_names() -> None:
    """The adapter is in every block's keys, the salt in the first block's only."""
    keys = [["lora", "salty"], ["lora"], ["lora"]]
    held = account(stored([1, 2, 3], None, TOKENS, lora_name="lora", extra_keys=keys))
    assert held.tiers() == {"device": set(names("salty", "lora"))}
    held = account(stored([1, 2, 3], None, TOKENS, extra_keys=[["salty"], None, None]))
    assert held.tiers() == {"device": set(names("salty"))}
    assert not set(names("salty")) & set(names())


def test_a_chain_goes_on_where_its_parent_is_known() -> None:
    """Events of later steps name only the block before."""
    held = account(
        stored([1], None, TOKENS[:BLOCK], extra_keys=[["salty"]]),
        stored([2, 3], 1, TOKENS[BLOCK:]),
    )
    assert held.tiers() == {"device": set(names("salty"))}


@pytest.mark.parametrize(
    "nameless",
    [
        stored([2, 3], 77, TOKENS[BLOCK:]),
        stored([1, 2, 3], None, TOKENS, extra_keys=[[["picture", 3]], None, None]),
        stored([1, 2, 3], None, TOKENS, extra_keys=[[b"digest of embeddings"], None, None]),
        stored([1, 2, 3], None, TOKENS, group_idx=1),
        stored([1, 2, 3], None, TOKENS, medium="TAPE"),
        stored([1], None, TOKENS, block_size=3 * BLOCK),
        stored([1, 2], None, TOKENS),
    ],
)
def test_what_has_no_name_is_left_out_and_counted(nameless: dict[str, object]) -> None:
    """And so is everything that follows it."""
    held = account(nameless, stored([9], 3, TOKENS[:BLOCK]))
    assert held.tiers() == {}
    assert held.unnamed == len(nameless["block_hashes"]) + 1  # type: ignore[arg-type]


def test_a_removed_block_is_gone_with_its_first_copy() -> None:
    """Never more is claimed than the engine holds."""
    held = account(
        stored([1, 2, 3], None, TOKENS),
        stored([1, 2, 3], None, TOKENS),
        event("BlockRemoved", block_hashes=[3, 44], medium="GPU"),
    )
    assert held.tiers() == {"device": set(names()[:2])}
    assert len(held) == 2


def test_tiers_are_kept_apart() -> None:
    """A block in main memory is not one on the device."""
    held = account(
        stored([1, 2, 3], None, TOKENS),
        stored([1, 2, 3], None, TOKENS, medium="CPU"),
        event("BlockRemoved", block_hashes=[1, 2, 3], medium="GPU"),
    )
    assert held.tiers() == {"host": set(names())}


def test_changes_are_told_once_and_only_their_end() -> None:
    """What came and went in between is not told as held."""
    held = account(
        stored([1, 2, 3], None, TOKENS),
        event("BlockRemoved", block_hashes=[3], medium="GPU"),
    )
    ((added, removed),) = held.take_changes().values()
    assert set(added) == set(names()[:2])
    assert removed == [names()[2]]
    assert held.take_changes() == {}


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xc1", b"\x80", b"\x93\x01", msgspec.msgpack.encode([1, [{"type": "Nonsense"}]])],
)
def test_what_is_no_batch_starts_the_account_anew(garbage: bytes) -> None:
    """Something may be missing: nothing is claimed from then on."""
    kept = KvAccount(NAMING)
    kept.take(0, batch(stored([1, 2, 3], None, TOKENS)))
    epoch = kept.epoch
    assert kept.take(1, garbage) is Taken.APPLIED
    assert (kept.blocks, kept.unreadable) == (0, 1)
    assert kept.epoch != epoch
    assert kept.take(2, batch()) is Taken.APPLIED


def test_five_percent_lost_of_a_thousand_batches_are_seen() -> None:
    """Each gap is noticed at the next batch; nothing is skipped in silence."""
    kept = KvAccount(NAMING)
    lost = set(range(7, 1000, 20))
    for number in range(1000):
        if number in lost:
            continue
        if kept.take(number, batch()) is Taken.GAP:
            assert kept.next_batch in lost
            kept.restart(at=number)
            kept.take(number, batch())
    assert kept.gaps == len(lost)
