"""What a request's body says to a router: its prompt's blocks, its session, its class."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from configs.request_class import INTERACTIVE, class_of
from kvstore.hashing import block_hashes
from router.errors import NotTokenized
from router.prompt import PromptReader
from router.request_facts import session_of
from router.routing_settings import SESSION_HEADER, PrefixSettings, Ready
from router.tenants import Tenants

LONG_PROMPT_CHARS: Final = 32_768
"""Longer ones are tokenized in a thread: they would hold up the loop for ten milliseconds."""


@dataclass(frozen=True)
class Reading:
    """What a request's body says to a router.

    Attributes:
        prompt_tokens: Of the prompt; 0 where it can't be known.
        chain: Hashes of its blocks.
        reason: Why there are none, a word; empty where there may be.
        session: What the client says belongs together; empty where it says nothing.
        request_class: `interactive` or `batch`.
    """

    prompt_tokens: int = 0
    chain: Sequence[int] = ()
    reason: str = ""
    session: str = ""
    request_class: str = INTERACTIVE


class BodyReader:
    """Reads bodies; knows no tokens before it has begun.

    Args:
        settings: The router's.
    """

    def __init__(self, settings: PrefixSettings) -> None:
        self._settings = settings
        self._reader: PromptReader | None = None
        self._tenants: Tenants | None = None

    def begin(self, ready: Ready) -> None:
        """From now on prompts are tokenized."""
        self._reader, self._tenants = ready.reader, Tenants(ready.tenants)

    async def read(self, body: Mapping[str, Any] | None, shown: str, part: float) -> Reading:
        """As `PrefixRouting.read`."""
        is_session = self._settings.shown_header == SESSION_HEADER
        if body is None:
            return Reading(reason="no_body", session=shown if is_session else "")
        session = (is_session and shown) or session_of(body)
        if part < 1.0:  # The model's name may stand behind what is there.
            body = {"model": self._settings.model, **body}
        reading = await self._read_prompt(body, "" if is_session else shown)
        return replace(
            reading,
            prompt_tokens=int(reading.prompt_tokens / part),
            session=session,
            request_class=class_of(body),
        )

    async def _read_prompt(self, body: Mapping[str, Any], key: str) -> Reading:
        reader, tenants = self._reader, self._tenants
        if reader is None or tenants is None:
            return Reading(reason="not_ready")
        try:
            if _chars(body) > LONG_PROMPT_CHARS:
                tokens = await asyncio.to_thread(reader.token_ids, body)
            else:
                tokens = reader.token_ids(body)
        except NotTokenized as error:
            return Reading(reason=error.reason)
        root = tenants.root_of(body.get("model"), key)
        if root is None:
            return Reading(len(tokens), (), "unknown_caller")
        return Reading(len(tokens), block_hashes(root, tokens, self._settings.block_tokens))


def _chars(body: Mapping[str, Any]) -> int:
    """About how long a prompt is; enough to tell a long one."""
    prompt = body.get("prompt") or body.get("input")
    if isinstance(prompt, str):
        return len(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(len(str(m.get("content", ""))) for m in messages if isinstance(m, dict))
