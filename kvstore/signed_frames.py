"""The envelope of what the cluster's parts tell each other over ZeroMQ: two signed frames.

    magic, 3 bytes | version, 1 byte | BLAKE2b-128 of the payload, keyed with the cluster token
    payload

The key is personalised by direction and version, so that no message can be sent back as an
answer, or be taken for one of another version. Nothing is unpickled, and what does not pass is
a `MalformedMessage` that says why.
"""

import hashlib
import hmac
from typing import Final, TypeVar

import msgspec

from kvstore.cluster_token import MIN_TOKEN_BYTES
from kvstore.errors import MalformedMessage

MAX_MESSAGE_BYTES: Final = 4 << 20
MAGIC_BYTES: Final = 3
_MAC_BYTES: Final = 16
_HEADER_BYTES: Final = MAGIC_BYTES + 1 + _MAC_BYTES

Message = TypeVar("Message")


class SignedFrames:
    """Signs payloads, and gives back those that this cluster signed.

    Args:
        token: The cluster token, the same everywhere in the cluster.
        magic: Three bytes that no other protocol of ours begins with.
        spoken: Versions that can be read here, oldest first; the last is what is written.

    Raises:
        ValueError: The token is shorter than `MIN_TOKEN_BYTES`.
    """

    def __init__(self, token: bytes, magic: bytes, spoken: tuple[int, ...]) -> None:
        if len(token) < MIN_TOKEN_BYTES:
            raise ValueError(f"the cluster token needs at least {MIN_TOKEN_BYTES} bytes")
        assert len(magic) == MAGIC_BYTES
        # BLAKE2b takes keys up to 64 bytes; a longer secret counts whole this way.
        self._key = hashlib.blake2b(token, digest_size=32).digest()
        self._magic, self._spoken = magic, spoken

    def sign(self, payload: bytes, direction: bytes, version: int | None = None) -> list[bytes]:
        """The two frames of a payload that goes in a direction, a word of up to 15 bytes."""
        version = self._spoken[-1] if version is None else version
        return [
            self._magic + bytes([version]) + self._mac(payload, direction, version),
            payload,
        ]

    def checked(self, frames: list[bytes], direction: bytes) -> bytes:
        """The payload of two frames that came from a direction.

        Raises:
            MalformedMessage: They hold none that this cluster's token signed, or one of a
                version that is not spoken here.
        """
        if len(frames) != 2 or len(frames[0]) != _HEADER_BYTES:
            raise MalformedMessage("frames", "it is not a header and a payload")
        header, payload = frames
        if not header.startswith(self._magic):
            raise MalformedMessage("frames", "its header is not ours")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MalformedMessage("size", f"it has more than {MAX_MESSAGE_BYTES} bytes")
        version = header[MAGIC_BYTES]
        if version not in self._spoken:
            raise MalformedMessage(
                "version", f"it speaks version {version}, this side {self._spoken}"
            )
        if not hmac.compare_digest(header[-_MAC_BYTES:], self._mac(payload, direction, version)):
            raise MalformedMessage("token", "it is not signed with this cluster's token")
        return payload

    def _mac(self, payload: bytes, direction: bytes, version: int) -> bytes:
        return hashlib.blake2b(
            payload,
            key=self._key,
            digest_size=_MAC_BYTES,
            person=direction + bytes([version]),
        ).digest()


def decoded(decoder: msgspec.msgpack.Decoder[Message], payload: bytes) -> Message:
    """The message in a payload.

    Raises:
        MalformedMessage: It has another shape.
    """
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedMessage("shape", str(error)) from None
