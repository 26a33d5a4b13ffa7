"""What a request's body says to a router: its prompt's blocks, its session, its class."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from configs.request_class import INTERACTIVE, class_of
from kvstore.hashing import block_hashes
from router.errors import NotTokenized
from router.prompt import PromptReader, PromptText
from router.request_facts import session_of
from router.routing_settings import SESSION_HEADER, PrefixSettings, Ready
from router.tenants import Tenants

LONG_PROMPT_CHARS: Final = 32_768
"""Longer ones are tokenized in a thread: they would hold up the loop for ten milliseconds."""
AFFINITY_BLOCKS: Final = 4
"""Of a prompt's beginning, which decides where a prompt goes that is warm nowhere."""
HEAD_CHARS_A_TOKEN: Final = 8
"""Enough for as many blocks in almost any language."""

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Unread:
    """A prompt of which the first blocks were enough, and the root of its blocks."""

    prompt: PromptText
    root: int


@dataclass(frozen=True)
class Reading:
    """What a request's body says to a router.

    Attributes:
        prompt_tokens: Of the prompt; 0 where it can't be known.
        chain: Hashes of its blocks.
        reason: Why there are none, a word; empty where there may be.
        session: What the client says belongs together; empty where it says nothing.
        request_class: `interactive` or `batch`.
        unread: The prompt, where `chain` has its first blocks only.
    """

    prompt_tokens: int = 0
    chain: Sequence[int] = ()
    reason: str = ""
    session: str = ""
    request_class: str = INTERACTIVE
    unread: Unread | None = None


class BodyReader:
    """Reads bodies; knows no tokens before it has begun.

    Of a long prompt the first blocks are read first. Where nobody has or expects the very first,
    the rest is not read: no more of it can be warm, and where it goes the first blocks decide.

    Args:
        settings: The router's.
        is_known: Whether anybody holds a block, or soon will.
    """

    def __init__(self, settings: PrefixSettings, is_known: Callable[[int], bool]) -> None:
        self._settings, self._is_known = settings, is_known
        self._chars_per_token = 4.0
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
        is_long = _chars(body) > LONG_PROMPT_CHARS
        try:
            prompt = await _maybe_in_a_thread(is_long, reader.prompt_of, body)
            root = tenants.root_of(body.get("model"), key)
            if isinstance(prompt, PromptText):
                if root is not None and (cold := self._cold(reader, prompt, root)) is not None:
                    return cold
                text, prompt = prompt, await _maybe_in_a_thread(is_long, reader.encoded, prompt)
                self._chars_per_token = len(text.text) / max(1, len(prompt))
        except NotTokenized as error:
            return Reading(reason=error.reason)
        if root is None:
            return Reading(len(prompt), (), "unknown_caller")
        return Reading(len(prompt), block_hashes(root, prompt, self._settings.block_tokens))

    def _cold(self, reader: PromptReader, prompt: PromptText, root: int) -> Reading | None:
        """What is enough to know of a prompt whose beginning is warm nowhere; None: read it all."""
        block_tokens = self._settings.block_tokens
        chars = HEAD_CHARS_A_TOKEN * AFFINITY_BLOCKS * block_tokens
        if len(prompt.text) < 2 * chars:
            return None
        chain = block_hashes(root, reader.head(prompt, chars), block_tokens)
        if len(chain) < AFFINITY_BLOCKS or self._is_known(chain[0]):
            return None
        tokens = int(len(prompt.text) / self._chars_per_token)
        return Reading(tokens, chain, unread=Unread(prompt, root))

    async def blocks_of(self, unread: Unread) -> Sequence[int]:
        """All blocks of a prompt that was not read to its end; none where it can't be."""
        assert self._reader is not None, "it has read the beginning"
        is_long = len(unread.prompt.text) > LONG_PROMPT_CHARS
        try:
            tokens = await _maybe_in_a_thread(is_long, self._reader.encoded, unread.prompt)
        except NotTokenized:
            return ()
        return block_hashes(unread.root, tokens, self._settings.block_tokens)


async def _maybe_in_a_thread(is_long: bool, work: Callable[[A], R], argument: A) -> R:
    return await asyncio.to_thread(work, argument) if is_long else work(argument)


def _chars(body: Mapping[str, Any]) -> int:
    """About how long a prompt is; enough to tell a long one."""
    prompt = body.get("prompt") or body.get("input")
    if isinstance(prompt, str):
        return len(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    return sum(len(str(m.get("content", ""))) for m in messages if isinstance(m, dict))
