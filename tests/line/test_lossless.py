"""Drafting never changes an answer: greedy equality in float32, token for token."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from lines import MODEL, Line
from prompts import PROMPTS

pytestmark = pytest.mark.line

OUTPUT_TOKENS = 32
CONCURRENCIES = (1, 8)

Answers = dict[int, list[list[int]]]
"""By concurrency: the token ids of each prompt's answer."""


def greedy_answers(line: Line) -> Answers:
    """Asks every prompt at every concurrency."""
    client = line.client()

    def ask(prompt: str) -> list[int]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        return list(answer.choices[0].model_extra["token_ids"])

    answers: Answers = {}
    for concurrency in CONCURRENCIES:
        with ThreadPoolExecutor(concurrency) as pool:
            answers[concurrency] = list(pool.map(ask, PROMPTS))
    return answers


def test_ngram_drafts_leave_every_greedy_answer_as_it_is(
    drafting_line: Line, keyless_line: Callable[[], Line]
) -> None:
    """20 prompts, alone and eight at once, with ngram drafts and without any: equal tokens."""
    before = drafting_line.counts()
    drafted = greedy_answers(drafting_line)
    after = drafting_line.counts()
    plain = greedy_answers(keyless_line())
    accepted = after["accepted_tokens"] - before["accepted_tokens"]
    assert accepted >= 100, "too few drafts were accepted to show anything"
    assert all(len(ids) == OUTPUT_TOKENS for answers in plain.values() for ids in answers)
    for concurrency in CONCURRENCIES:
        assert drafted[concurrency] == plain[1], f"drafting, concurrency {concurrency}"
        assert plain[concurrency] == plain[1], f"no drafting, concurrency {concurrency}"
