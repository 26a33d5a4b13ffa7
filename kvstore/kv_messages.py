"""What verifiers tell routers about their KV blocks, and how it is packed.

A router asks to be told, again and again while it wants to be; the verifier's relay answers:

    Follow         router -> verifier: keep me told; from a snapshot, if `resync`
    SnapshotPart   verifier -> router: some of the blocks held at one moment
    Delta          verifier -> router: what changed since the delta before; also sent, empty,
                   as a sign of life; carries the verifier's load

`epoch` changes whenever the verifier starts its account anew, `sequence` counts deltas within
an epoch. A router that sees neither the next sequence nor a whole snapshot asks again.

On the wire a message is msgpack of the struct, as an array, in `signed_frames.py`'s envelope.
Hashes travel as little-endian uint64; sizes and ranges are checked.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvstore.hashing import HASH_BYTES
from kvstore.signed_frames import SignedFrames, decoded

PROTOCOL: Final = 1
"""One more whenever an older peer would misunderstand a message."""
MAX_HASHES: Final = 1 << 18
"""In one message."""
PART_HASHES: Final = 1 << 13
"""In one part of a snapshot: taking it in stops a router for less than a millisecond."""

_FOLLOW: Final = b"pcl-kv-follow"
_TELL: Final = b"pcl-kv-tell"

DEVICE: Final = "device"
HOST: Final = "host"
STORAGE: Final = "storage"
TIERS: Final = (DEVICE, HOST, STORAGE)
"""From the nearest to the farthest."""

Epoch = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(ge=0)]
Packed = Annotated[bytes, Meta(max_length=HASH_BYTES * MAX_HASHES)]
Tier = Annotated[str, Meta(max_length=16)]
Text = Annotated[str, Meta(max_length=256)]


class FetchCosts(msgspec.Struct, frozen=True, array_like=True):
    """What bringing shared blocks into a verifier costs, seconds by tokens.

    Attributes:
        host_base_s: From its node's memory, at all,
        host_s_per_token: and for each token.
        storage_base_s: From the tier that all nodes share; 0 together with the next where that
            has not been measured or is not reached.
        storage_s_per_token: As before.
    """

    host_base_s: Seconds
    host_s_per_token: Seconds
    storage_base_s: Seconds
    storage_s_per_token: Seconds


class LoadReport(msgspec.Struct, frozen=True, array_like=True):
    """How busy a verifier is, and how fast.

    Attributes:
        in_flight: Requests in the engine, whether it has begun them or not.
        queued_tokens: Prompt tokens still to be computed, of requests without a first token.
        prefill_base_s: Time of a prefill apart from its tokens; 0 together with the next where
            nothing is measured yet.
        prefill_s_per_token: Time of one more token to prefill.
        prompt_tokens: Of ended requests, since the start.
        cached_prompt_tokens: Of those, found in a cache.
        at_s: When this was so (the verifier's wall clock).
        fetch: What fetching shared blocks costs; None where it shares none, or does not know.
        waiting: Of the requests in flight, those without a first token.
        queued_batch_tokens: Of the queued tokens those of requests that can wait.
    """

    in_flight: Count
    queued_tokens: Count
    prefill_base_s: Seconds
    prefill_s_per_token: Seconds
    prompt_tokens: Count
    cached_prompt_tokens: Count
    at_s: Seconds
    fetch: FetchCosts | None = None
    waiting: Count = 0
    queued_batch_tokens: Count = 0


class Follow(msgspec.Struct, frozen=True, array_like=True):
    """A router wants to be told for the next seconds.

    Attributes:
        scheme: How it hashes blocks.
        block_tokens: Tokens of one of its blocks.
        weights_fingerprint: Which weights it routes for.
        resync: Whether it needs a snapshot.
    """

    scheme: Count
    block_tokens: Count
    weights_fingerprint: Text
    resync: bool


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Some of the blocks that were held after `sequence` deltas of `epoch`.

    Attributes:
        part: Counts from 0.
        parts: How many there are, at least one.
        tier: Where these blocks lie.
        hashes: Packed.
    """

    epoch: Epoch
    sequence: Count
    part: Count
    parts: Count
    tier: Tier
    hashes: Packed


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What changed in one tier: packed hashes that came, and that went."""

    tier: Tier
    added: Packed
    removed: Packed


class Delta(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What changed since the delta before. An empty one does not count on `sequence`."""

    epoch: Epoch
    sequence: Count
    changes: Annotated[list[Change], Meta(max_length=len(TIERS))]
    load: LoadReport | None = None


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The verifier does not tell this router anything: its hashes mean something else."""

    reason: Text


Telling = SnapshotPart | Delta | Refusal
"""What a verifier sends to a router."""

_encoder: Final = msgspec.msgpack.Encoder()
_follow_decoder: Final = msgspec.msgpack.Decoder(Follow)
_telling_decoder: Final = msgspec.msgpack.Decoder(Telling)


class KvCodec:
    """Packs and unpacks messages under one cluster token.

    Args:
        token: The cluster token, the same on every verifier and router.

    Raises:
        ValueError: The token is too short.
    """

    def __init__(self, token: bytes) -> None:
        self._frames = SignedFrames(token, b"PKV", (PROTOCOL,))

    def pack(self, message: Follow | Telling) -> list[bytes]:
        """The two frames of a message."""
        direction = _FOLLOW if isinstance(message, Follow) else _TELL
        return self._frames.sign(_encoder.encode(message), direction)

    def unpack_follow(self, frames: list[bytes]) -> Follow:
        """What a router says.

        Raises:
            MalformedMessage: The frames hold nothing that this cluster's token signed, or
                something of another version, direction or shape.
        """
        return decoded(_follow_decoder, self._frames.checked(frames, _FOLLOW))

    def unpack_telling(self, frames: list[bytes]) -> Telling:
        """What a verifier says.

        Raises:
            MalformedMessage: As `unpack_follow`.
        """
        return decoded(_telling_decoder, self._frames.checked(frames, _TELL))
