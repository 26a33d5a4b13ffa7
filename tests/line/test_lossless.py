"""Drafting never changes an answer: greedy equality in float32, token for token.

The same requests go to three lines that differ in who drafts: draft workers, from the request's
own text and from the index of finished ones; vLLM's ngram inside the engine; nobody.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lines import LORA, MODEL, Line
from prompts import CODE, FACTS, PROMPTS

pytestmark = pytest.mark.line

OUTPUT_TOKENS = 32
CONCURRENCIES = (1, 8)
LEAST_ACCEPTED = 100
WORKER_SOURCES = ("worker:prompt_lookup", "worker:ngram_index")

Answers = dict[int, list[Any]]
"""By concurrency: what each request was answered."""

SCHEMA = {
    "type": "object",
    "properties": {
        "rivers": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "longest": {"type": "string", "maxLength": 20},
    },
    "required": ["rivers", "longest"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 12}},
            "required": ["word"],
        },
    },
}

SPECIAL_REQUESTS: tuple[dict[str, Any], ...] = (
    {
        "prompt": f"{FACTS}Give the rivers as JSON.",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "rivers", "schema": SCHEMA},
        },
        "max_tokens": 96,
    },
    {"prompt": "Look up the word bicycle.", "tools": [TOOL], "tool_choice": "required"},
    {"prompt": f"Repeat this code:\n{CODE}", "stop": ["square"], "max_tokens": 96},
    {"prompt": f"Copy word for word: {FACTS}", "logprobs": True, "top_logprobs": 3},
    {"prompt": f"Copy word for word: {FACTS}", "model": LORA},
    {"prompt": f"Repeat this code:\n{CODE}", "presence_penalty": 0.5, "repetition_penalty": 1.1},
    {"prompt": "one two three " * 12, "max_tokens": 64},
    {"prompt": "🚴‍♀️🚴🏽🚴‍♂️ 自転車 " * 6 + "Repeat.", "max_tokens": 48},
)
REQUESTS: tuple[dict[str, Any], ...] = (
    *({"prompt": prompt, "ignore_eos": True} for prompt in PROMPTS),
    *SPECIAL_REQUESTS,
)


def asked(line: Line, request: dict[str, Any], stream: bool) -> Any:
    """What `line` answers, as far as it may not depend on who drafts."""
    own = {"ignore_eos", "repetition_penalty"}
    body = {key: value for key, value in request.items() if key not in own | {"prompt"}}
    extra = {key: value for key, value in request.items() if key in own}
    answer = line.client().chat.completions.create(
        **{"model": MODEL, "max_tokens": OUTPUT_TOKENS, **body},
        messages=[{"role": "user", "content": request["prompt"]}],
        temperature=0,
        stream=stream,
        extra_body={"return_token_ids": True, **extra},
    )
    if not stream:
        return [
            (
                choice.model_extra["token_ids"],
                choice.message.content,
                choice.finish_reason,
                [call.function.arguments for call in choice.message.tool_calls or ()],
                [(token.token, round(token.logprob, 3)) for token in choice.logprobs.content]
                if choice.logprobs
                else None,
            )
            for choice in answer.choices
        ]
    ids: dict[int, list[int]] = {}
    for chunk in answer:
        for choice in chunk.choices:
            ids.setdefault(choice.index, []).extend(choice.model_extra.get("token_ids") or ())
    return sorted(ids.items())


def greedy_answers(line: Line) -> tuple[Answers, Answers]:
    """Asks everything at every concurrency, whole and streamed."""
    whole: Answers = {}
    streamed: Answers = {}
    for concurrency in CONCURRENCIES:
        with ThreadPoolExecutor(concurrency) as pool:
            whole[concurrency] = list(pool.map(lambda r: asked(line, r, False), REQUESTS))
    with ThreadPoolExecutor(8) as pool:
        streamed[8] = list(pool.map(lambda r: asked(line, r, True), REQUESTS))
    return whole, streamed


@pytest.mark.timeout(1500)  # three lines, and 84 requests to each
def test_no_way_of_drafting_changes_a_greedy_answer(
    drafting_line: Line, ngram_line: Callable[[], Line], keyless_line: Callable[[], Line]
) -> None:
    """28 requests, alone and eight at once, whole and streamed: equal tokens on three lines."""
    before = drafting_line.accepted_by_source()
    split = greedy_answers(drafting_line)
    accepted = drafting_line.accepted_by_source()
    for source in WORKER_SOURCES:
        assert accepted.get(source, 0) - before.get(source, 0) >= LEAST_ACCEPTED, accepted
    line = ngram_line()
    before_ngram = line.counts()["accepted_tokens"]
    ngram = greedy_answers(line)
    assert line.counts()["accepted_tokens"] - before_ngram >= LEAST_ACCEPTED
    plain = greedy_answers(keyless_line())
    for concurrency in CONCURRENCIES:
        for place, request in enumerate(REQUESTS):
            told = f"concurrency {concurrency}: {json.dumps(request)[:200]}"
            expected = plain[0][1][place]
            assert plain[0][concurrency][place] == expected, f"no drafts, {told}"
            assert ngram[0][concurrency][place] == expected, f"ngram, {told}"
            assert split[0][concurrency][place] == expected, f"split, {told}"
    assert ngram[1] == plain[1]
    assert split[1] == plain[1]
