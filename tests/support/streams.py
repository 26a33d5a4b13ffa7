"""Streamed answers that are kept as they come, and stories that are told the same each time."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import closed_loop
import httpx
from lines import MODEL, Line

ANSWER_S: Final = 180.0
POLL_S: Final = 0.1
TOKENS: Final = 80
SUBJECTS: Final = ("a lamp", "a river", "two dogs", "the moon", "a train", "an old map")


def story_of(subject: str, **changes: Any) -> dict[str, Any]:
    """A request whose answer is always the same."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Tell a story about {subject}."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **changes,
    }


@dataclass
class Stream:
    """One streamed answer, as it comes."""

    url: str
    subject: str
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the request."""
    verifier: str = ""
    text: str = ""
    finish: str | None = None
    is_done: bool = False
    """Whether the stream said that it is over."""
    error: str = ""
    sent_at_s: float = 0.0
    first_at_s: float = 0.0
    ended_at_s: float = 0.0

    def run(self) -> "Stream":
        """Asks, and takes in what comes."""
        self.sent_at_s = time.monotonic()
        body = story_of(self.subject, stream=True, **self.more)
        try:
            with httpx.stream("POST", self.url, json=body, timeout=ANSWER_S) as response:
                self.verifier = verifier_of(response)
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    self._take(line.removeprefix("data: "))
        except Exception as error:  # what it is, a test looks at
            self.error = repr(error)
        self.ended_at_s = time.monotonic()
        return self

    def _take(self, event: str) -> None:
        if event == "[DONE]":
            self.is_done = True
        elif event:
            said = json.loads(event)
            assert "error" not in said, said
            self.first_at_s = self.first_at_s or time.monotonic()
            for choice in said["choices"]:
                self.text += choice["delta"].get("content") or ""
                self.finish = choice["finish_reason"] or self.finish

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.is_done and self.finish == "length" and not self.error


@dataclass
class Clients:
    """What asks the line."""

    line: Line
    streams: list[Stream] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.line.url}/v1/chat/completions"

    def stream(self, subject: str, **more: Any) -> Stream:
        """A stream that is kept, not yet asked for."""
        self.streams.append(Stream(self.url, subject, more))
        return self.streams[-1]

    def ask(self, body: dict[str, Any]) -> httpx.Response:
        """A whole answer."""
        return httpx.post(self.url, json=body, timeout=ANSWER_S)

    @contextmanager
    def streaming(self, clients: int) -> Iterator[None]:
        """So many of them stream, one answer after another, until the block ends."""

        def stream(number: int) -> None:
            self.stream(SUBJECTS[number % len(SUBJECTS)]).run()

        with closed_loop.asking(clients, stream):
            yield


def verifier_of(response: httpx.Response) -> str:
    """Where the router first sent the request."""
    return response.headers["x-paceline-route"].split(",")[0]


def said_by(response: httpx.Response) -> list[Any]:
    """What an answer says, without what is new each time: ids, and texts where they are drawn."""
    assert response.status_code == 200, response.text
    body = response.json()
    said: list[Any] = [body["usage"]["completion_tokens"]]
    for choice in body["choices"]:
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        text = choice["message"]["content"] if len(body["choices"]) == 1 else ""
        said.append((text, calls, choice["finish_reason"]))
    return said
