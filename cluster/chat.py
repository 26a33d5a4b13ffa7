"""Asks the running cluster a question and tells how the answer came about."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from cluster.errors import RequestFailed

KEY_VARIABLE = "PACELINE_API_KEY"
TIMEOUT_S = 300


@dataclass(frozen=True)
class AnswerStats:
    """What one answer took. Drafted and accepted are 0 where nothing is drafted."""

    output_tokens: int
    ttft_s: float
    duration_s: float
    drafted_tokens: int
    accepted_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: tokens after the first, over the time after the first."""
        decode_s = self.duration_s - self.ttft_s
        return (self.output_tokens - 1) / decode_s if decode_s > 0 else 0.0

    def __str__(self) -> str:
        rate = f" ({self.accepted_tokens / self.drafted_tokens:.0%})" if self.drafted_tokens else ""
        return (
            f"{self.output_tokens} tokens, {self.tokens_per_s:.1f} tokens/s, first token after "
            f"{self.ttft_s:.2f} s, {self.drafted_tokens} drafted, {self.accepted_tokens} "
            f"accepted{rate}"
        )


class Conversation:
    """A chat with the cluster at `url`, as the model `model`."""

    def __init__(self, url: str, model: str, max_tokens: int) -> None:
        self._model, self._max_tokens = model, max_tokens
        self._messages: list[ChatCompletionMessageParam] = []
        self._client = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key=os.environ.get(KEY_VARIABLE, "none"),
            timeout=TIMEOUT_S,
            max_retries=0,
        )
        self.stats: AnswerStats | None = None

    def ask(self, question: str) -> Iterable[str]:
        """Yields the answer piece by piece; `stats` is set when it is whole.

        Raises:
            RequestFailed: With what the server said, and what to do about a missing key.
        """
        self._messages.append({"role": "user", "content": question})
        answer, started_s, first_s = "", time.monotonic(), None
        usage: Any = None
        speculation: dict[str, Any] = {}
        try:
            with self._client.chat.completions.create(
                model=self._model,
                messages=self._messages,
                max_tokens=self._max_tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            ) as stream:
                for chunk in stream:
                    if chunk.usage is not None:
                        usage = chunk.usage
                        metrics = (chunk.model_extra or {}).get("metrics") or {}
                        speculation = metrics.get("speculative_decoding") or {}
                    if chunk.choices and (piece := chunk.choices[0].delta.content):
                        first_s = first_s or time.monotonic()
                        answer += piece
                        yield piece
        except openai.AuthenticationError as error:
            raise RequestFailed(f"{error.message} (set {KEY_VARIABLE})") from error
        except openai.APIConnectionError as error:
            raise RequestFailed(f"nothing answers at {self._client.base_url}") from error
        except openai.APIError as error:
            raise RequestFailed(error.message) from error
        ended_s = time.monotonic()
        self._messages.append({"role": "assistant", "content": answer})
        self.stats = AnswerStats(
            output_tokens=usage.completion_tokens if usage else 0,
            ttft_s=(first_s or ended_s) - started_s,
            duration_s=ended_s - started_s,
            drafted_tokens=speculation.get("num_draft_tokens", 0),
            accepted_tokens=speculation.get("num_accepted_draft_tokens", 0),
        )
