"""The way back: vLLM's response to the client, errors in our shape.

A response that succeeds passes through as it comes. One that fails is held until its
body is whole and sent in our shape. The head of an event stream waits for its first
event, so that a request which the engine refuses gets a plain error and its status.
"""

from collections.abc import Collection, Iterable
from typing import Literal

from starlette.types import Message, Send

from replicas.verifier.engine_errors import of_engine, of_first_event
from replicas.verifier.openai_errors import ApiError

LONGEST_ERROR_BYTES = 1 << 20

_OF_THE_BODY = (b"content-length", b"content-type", b"content-encoding", b"transfer-encoding")


async def send_error(
    send: Send,
    error: ApiError,
    for_anthropic: bool,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Sends a whole response that says what went wrong.

    Args:
        send: The server's.
        error: What went wrong.
        for_anthropic: Whether the client reads Anthropic's dialect.
        headers: More headers; those about the body are replaced.
    """
    body = error.to_json(for_anthropic)
    kept = [(name, value) for name, value in headers if name.lower() not in _OF_THE_BODY]
    about_body = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    head = {"type": "http.response.start", "status": error.status, "headers": kept + about_body}
    await send(head)
    await send({"type": "http.response.body", "body": body})


class ShapedResponse:
    """An ASGI `send` for vLLM's app.

    Args:
        send: The server's, which gets what this one lets through.
        fields: Top-level fields the request may have, for the `param` of errors.
        for_anthropic: Whether the client reads Anthropic's dialect.
        headers: That the response gets besides the app's.
    """

    def __init__(
        self,
        send: Send,
        fields: Collection[str],
        for_anthropic: bool,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._send = send
        self._fields = fields
        self._for_anthropic = for_anthropic
        self._headers = list(headers)
        self._state: Literal["new", "passing", "failing", "first_event", "over"] = "new"
        self._head: Message = {}
        self._error_body = bytearray()

    @property
    def is_started(self) -> bool:
        """Whether the client has got any of the response."""
        return self._state in ("passing", "over")

    async def __call__(self, message: Message) -> None:
        """Takes the app's next message."""
        if message["type"] == "http.response.start":
            await self._take_head(message)
        elif self._state == "passing":
            await self._send(message)
        elif self._state == "failing":
            await self._take_error(message)
        elif self._state == "first_event":
            await self._take_first_event(message)

    async def fail(self, error: ApiError) -> None:
        """Answers with an error instead of what the app may still say."""
        self._state = "over"
        await send_error(self._send, error, self._for_anthropic, self._head.get("headers", ()))

    async def _take_head(self, head: Message) -> None:
        self._head = head = {**head, "headers": [*head["headers"], *self._headers]}
        if head["status"] >= 400:
            self._state = "failing"
        elif any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in head["headers"]
        ):
            self._state = "first_event"
        else:
            self._state = "passing"
            await self._send(head)

    async def _take_error(self, message: Message) -> None:
        self._error_body += message.get("body", b"")
        del self._error_body[LONGEST_ERROR_BYTES:]
        if not message.get("more_body", False):
            await self.fail(of_engine(self._head["status"], bytes(self._error_body), self._fields))

    async def _take_first_event(self, message: Message) -> None:
        chunk = message.get("body", b"")
        if not chunk and message.get("more_body", False):
            return
        if error := of_first_event(chunk, self._fields):
            await self.fail(error)
            return
        self._state = "passing"
        await self._send(self._head)
        await self._send(message)
