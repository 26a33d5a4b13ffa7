"""From the bytes of a request's body to a JSON object, and back.

Stricter than JSON parsers are by habit: one reader's duplicate key or `NaN` is
another's surprise, and deep nesting ends in a recursion error somewhere behind.
The standard library parses because it alone can see duplicate keys.
"""

import asyncio
import json
import math
from typing import Any

import msgspec
from starlette.types import Message, Receive

from replicas.errors import BodyTooLarge, BodyTooSlow, ClientLeft, InvalidRequest

MAX_DEPTH = 100
"""Objects and arrays inside each other. vLLM allows 64 levels to a schema."""

Body = dict[str, Any]


def too_large(max_bytes: int) -> BodyTooLarge:
    """What a client is told whose body has more bytes than `max_bytes`."""
    return BodyTooLarge(f"The body is larger than the {max_bytes} bytes a request may have.")


class Upload:
    """A request's body on its way in, and what the app receives in its place.

    Args:
        receive: The server's.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_replaced = False
        self._hung_up = asyncio.Event()
        self.is_whole = False
        """Whether all of it has been read."""
        self.replacement: bytes | None = None
        """The app's body, instead of the client's."""

    async def read(self, max_bytes: int, timeout_s: float) -> bytes:
        """The whole body; reads at most one message past `max_bytes`.

        Raises:
            BodyTooLarge: It has more bytes.
            BodyTooSlow: It is not whole after `timeout_s` seconds.
            ClientLeft: The client hung up first.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_whole:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    body += message.get("body", b"")
                    if len(body) > max_bytes:
                        raise too_large(max_bytes)
                    self.is_whole = not message.get("more_body", False)
        except TimeoutError:
            raise BodyTooSlow(f"The body did not arrive within {timeout_s:g} seconds.") from None
        return bytes(body)

    async def receive(self) -> Message:
        """The app's `receive`: the replacement once, then what the server has to say."""
        if self.replacement is None or self._is_replaced:
            return await self._next_message()
        self._is_replaced = True
        return {"type": "http.request", "body": self.replacement, "more_body": False}

    def hang_up(self) -> None:
        """The app hears from now on that the client has left, whatever the server says."""
        self._hung_up.set()

    async def _next_message(self) -> Message:
        message = asyncio.ensure_future(self._receive())
        hung_up = asyncio.ensure_future(self._hung_up.wait())
        try:
            await asyncio.wait([message, hung_up], return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if hung_up.done() else message.result()
        finally:
            message.cancel()
            hung_up.cancel()


def parse_object(raw: bytes) -> Body:
    """The JSON object that a body is.

    Raises:
        InvalidRequest: It is not UTF-8, not JSON (`NaN`, numbers without end and keys
            that stand twice are not), not an object, or nested too deeply.
    """
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError:
        raise _unreadable("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _unreadable(f"it stops making sense at {where}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        # Integers with more digits than Python converts.
        raise _unreadable("it holds a number that is too large") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    if _is_deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    return value


def encode(value: Any) -> bytes:
    """The JSON bytes of a parsed value.

    Raises:
        InvalidRequest: A string in it holds half a surrogate pair, which no text has.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise _unreadable("it holds half a surrogate pair (`\\ud800` to `\\udfff`)") from None


def _unreadable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> InvalidRequest:
    return _unreadable(f"it is nested more than {MAX_DEPTH} levels deep")


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> Body:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise _unreadable("it has the same key twice in one object")
    return parsed


def _constant(name: str) -> float:
    raise _unreadable(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _unreadable("it holds a number that is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
)
