"""From a request's body to the token ids that the engine will see.

The tokenizer and the chat template are the model folder's, loaded by transformers on first
use (2.6 s and 400 MiB, in a thread; until then requests are routed by load). Tokens only say
where a request may be answered soonest, so whatever is unusual raises `NotTokenized` and is
routed by load.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from kvstore.hashing import Tokens
from router.conversation import Chat, ContentFormat, chat_of
from router.errors import NotTokenized
from router.responses import chat_of_responses
from router.segments import Segments

logger = logging.getLogger(__name__)

OWN_RENDERERS: Final = frozenset(
    {"gpt_oss", "deepseek_v32", "deepseek_v4", "cohere2", "kimi_k3", "kimi_audio"}
    | {"inkling", "pixtral", "voxtral"}
)
"""Model types that vLLM renders by code of its own and not by a template."""


CUT_TOKENS: Final = 16
"""At the end of a text that is cut: what follows may change them."""


@dataclass(frozen=True)
class PromptSettings:
    """What prompts are made with.

    Attributes:
        source: The model's folder, or a hub id that transformers can load.
        chat_template: File of a template that replaces the model's own.
        trust_remote_code: As the engine is told.
    """

    source: str
    chat_template: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class PromptText:
    """A prompt before it is tokenized.

    Attributes:
        text: Of the prompt.
        adds_special_tokens: Whether the tokenizer adds its own, such as one for the beginning.
    """

    text: str
    adds_special_tokens: bool


class PromptReader:
    """Tokenizes requests. Loading takes seconds: make it in a thread.

    Args:
        settings: What prompts are made with.

    Raises:
        Exception: Whatever transformers raises for a folder it can't load.
    """

    def __init__(self, settings: PromptSettings) -> None:
        # Imported here: a process that never routes should not pay for it.
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils.chat_template_utils import render_jinja_template

        tokenizer = AutoTokenizer.from_pretrained(
            settings.source, trust_remote_code=settings.trust_remote_code
        )
        config = AutoConfig.from_pretrained(
            settings.source, trust_remote_code=settings.trust_remote_code
        )
        self._is_known = config.model_type not in OWN_RENDERERS and hasattr(
            tokenizer, "backend_tokenizer"
        )
        self._tokenizer = tokenizer
        self._segments = Segments(tokenizer.backend_tokenizer) if self._is_known else None
        self._special = dict(tokenizer.special_tokens_map)
        self._render_template = render_jinja_template
        self._templates: dict[bool, str | None] = {}
        own = settings.chat_template
        for has_tools in (False, True):
            self._templates[has_tools] = own.read_text() if own else self._template(has_tools)
        self._formats: dict[str, ContentFormat] = {
            template: self._content_format(template)
            for template in self._templates.values()
            if template is not None
        }

    def token_ids(self, body: Mapping[str, Any]) -> Tokens:
        """The prompt of a chat, responses or completion request; of several prompts the first.

        Args:
            body: As the client sent it.

        Returns:
            [tokens] int32.

        Raises:
            NotTokenized: It can't be known here what the engine will see.
        """
        prompt = self.prompt_of(body)
        return prompt if isinstance(prompt, np.ndarray) else self.encoded(prompt)

    def prompt_of(self, body: Mapping[str, Any]) -> "Tokens | PromptText":
        """The same as far as it goes without tokenizing.

        Raises:
            NotTokenized: As `token_ids`.
        """
        if not self._is_known:
            raise NotTokenized("model")
        if body.get("truncate_prompt_tokens") is not None:
            raise NotTokenized("truncated")
        if "input" in body and "messages" not in body:
            body = chat_of_responses(body)
        if "messages" in body:
            return PromptText(self.rendered(body), bool(body.get("add_special_tokens", False)))
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str) and prompt:
            return PromptText(prompt, bool(body.get("add_special_tokens", True)))
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return _as_tokens(prompt)
        raise NotTokenized("no_prompt")

    def rendered(self, body: Mapping[str, Any]) -> str:
        """The text that a chat request becomes.

        Raises:
            NotTokenized: As `token_ids`.
        """
        # Anthropic's requests have their system prompt in a field of its own.
        if body.get("chat_template") is not None or "system" in body:
            raise NotTokenized("template")
        template = self._templates[bool(body.get("tools"))]
        if template is None:
            raise NotTokenized("template")
        chat = chat_of(
            body,
            self._formats[template],
            knows_developer='"developer"' in template or "'developer'" in template,
        )
        if not chat.messages:
            raise NotTokenized("message")
        return self._render(template, chat)

    def _render(self, template: str, chat: Chat) -> str:
        try:
            (text,), _ = self._render_template(
                conversations=[chat.messages],
                tools=chat.tools,
                chat_template=template,
                **{**self._special, **chat.arguments},
            )
        except Exception as error:  # a template is code, and raises what it likes
            raise NotTokenized("template") from error
        return str(text)

    def encoded(self, prompt: "PromptText") -> Tokens:
        """All tokens of a prompt.

        Raises:
            NotTokenized: The tokenizer failed.
        """
        text, add_special_tokens = prompt.text, prompt.adds_special_tokens
        try:
            if not add_special_tokens and self._segments is not None and self._segments.suits:
                return self._segments.encode(text)
            # The batch form leaves out the places in the text, and so takes a fifth less.
            (encoding,) = self._tokenizer.backend_tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except Exception as error:  # the tokenizer's own errors have no class of their own
            raise NotTokenized("tokenizer") from error
        return _as_tokens(encoding.ids)

    def head(self, prompt: "PromptText", chars: int) -> Tokens:
        """Tokens of the beginning, without the last few, which what follows would change.

        Raises:
            NotTokenized: The tokenizer failed.
        """
        beginning = replace(prompt, text=prompt.text[:chars])
        return self.encoded(beginning)[:-CUT_TOKENS]

    def _template(self, has_tools: bool) -> str | None:
        try:
            template: str = self._tokenizer.get_chat_template(None, tools=[] if has_tools else None)
        except ValueError:
            return None
        return template

    def _content_format(self, template: str) -> ContentFormat:
        """What a template makes of a list of parts shows whether it takes one.

        vLLM reads it off the template's syntax tree; tests hold the two together.
        """
        parts = [{"type": "text", "text": "PartOne"}, {"type": "text", "text": "PartTwo"}]
        probe = Chat([{"role": "user", "content": parts}], None, {"add_generation_prompt": True})
        try:
            text = self._render(template, probe)
        except NotTokenized:
            return "string"
        is_taken_apart = "PartOne" in text and "PartTwo" in text and "'text'" not in text
        return "openai" if is_taken_apart and '"text"' not in text else "string"


def _as_tokens(ids: list[int]) -> Tokens:
    try:
        return np.array(ids, dtype=np.int32)
    except OverflowError as error:
        raise NotTokenized("tokenizer") from error
