"""Every sampling parameter works while tokens are drafted, or is a 400 that names it.

Each case shows an effect, so that a parameter that is taken and ignored fails. The
last test holds the cases against the front door's own table of fields.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from lines import MODEL, Line

from replicas.verifier.request_fields import FIELDS, Effect

pytestmark = pytest.mark.line

TOKENS = 24
PROMPT = "one two three one two three one two three one two"
VOCABULARY = 49152

Answer = dict[str, Any]


@dataclass(frozen=True)
class Works:
    """A parameter with an effect that can be seen beside the plain greedy answer."""

    body: Callable[[Answer], dict[str, Any]]
    shows: Callable[[Answer, Answer], bool]


def ids(answer: Answer) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def text(answer: Answer) -> str:
    return str(answer["choices"][0]["text"])


def most_common(answer: Answer) -> int:
    return Counter(ids(answer)).most_common(1)[0][1]


def body(**changes: Any) -> Callable[[Answer], dict[str, Any]]:
    return lambda _: changes


WORKS: dict[str, Works] = {
    "temperature": Works(body(temperature=1.9, seed=1), lambda got, base: ids(got) != ids(base)),
    "seed": Works(body(temperature=1.9, seed=2), lambda got, base: ids(got) != ids(base)),
    "top_k": Works(body(temperature=1.5, top_k=1), lambda got, base: ids(got) == ids(base)),
    "top_p": Works(body(temperature=1.5, top_p=1e-6), lambda got, base: ids(got) == ids(base)),
    "frequency_penalty": Works(
        body(frequency_penalty=2), lambda got, base: most_common(got) < most_common(base)
    ),
    "presence_penalty": Works(
        body(presence_penalty=2), lambda got, base: len(set(ids(got))) > len(set(ids(base)))
    ),
    "repetition_penalty": Works(
        body(repetition_penalty=1.9), lambda got, base: most_common(got) < most_common(base)
    ),
    "max_tokens": Works(body(max_tokens=5), lambda got, base: ids(got) == ids(base)[:5]),
    "n": Works(body(n=2, temperature=1.0), lambda got, _: len(got["choices"]) == 2),
    "stop": Works(
        body(stop=["three one"]),
        lambda got, base: text(got) == text(base).partition("three one")[0],
    ),
    "include_stop_str_in_output": Works(
        body(stop=["three one"], include_stop_str_in_output=True),
        lambda got, _: text(got).endswith("three one"),
    ),
    "stop_token_ids": Works(
        lambda base: {"stop_token_ids": [ids(base)[4]]},
        lambda got, base: len(ids(got)) == ids(base).index(ids(base)[4]) + 1,
    ),
    "min_tokens": Works(
        lambda base: {"stop_token_ids": [ids(base)[0]], "min_tokens": 9},
        lambda got, _: len(ids(got)) > 9,
    ),
    "ignore_eos": Works(
        body(allowed_token_ids=[2], ignore_eos=True), lambda got, _: ids(got) == [2] * TOKENS
    ),
    "allowed_token_ids": Works(
        body(allowed_token_ids=[40, 41, VOCABULARY - 1], ignore_eos=True),
        lambda got, _: set(ids(got)) <= {40, 41, VOCABULARY - 1},
    ),
    "bad_words": Works(
        body(bad_words=[" three"]),
        lambda got, base: " three" in text(base) and " three" not in text(got),
    ),
    "skip_special_tokens": Works(
        body(allowed_token_ids=[2], ignore_eos=True, skip_special_tokens=False),
        lambda got, _: "<|im_end|>" in text(got),
    ),
    "spaces_between_special_tokens": Works(
        body(
            allowed_token_ids=[2],
            ignore_eos=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        ),
        lambda got, _: "<|im_end|><|im_end|>" in text(got),
    ),
    "logprobs": Works(
        body(logprobs=2), lambda got, _: len(got["choices"][0]["logprobs"]["tokens"]) == TOKENS
    ),
    "prompt_logprobs": Works(
        body(prompt_logprobs=1), lambda got, _: len(got["choices"][0]["prompt_logprobs"]) > 5
    ),
    "echo": Works(
        body(echo=True, return_token_ids=False), lambda got, _: text(got).startswith(PROMPT)
    ),
    "truncate_prompt_tokens": Works(
        body(truncate_prompt_tokens=4), lambda got, _: got["usage"]["prompt_tokens"] == 4
    ),
    "truncation_side": Works(
        body(truncate_prompt_tokens=4, truncation_side="right"),
        lambda got, base: (
            got["choices"][0]["prompt_token_ids"] == base["choices"][0]["prompt_token_ids"][:4]
        ),
    ),
    "add_special_tokens": Works(
        body(add_special_tokens=False), lambda got, base: ids(got) == ids(base)
    ),
    "response_format": Works(
        body(response_format={"type": "json_object"}), lambda got, _: text(got).lstrip()[0] in "{["
    ),
    "structured_outputs": Works(
        body(structured_outputs={"choice": ["yes", "no"]}),
        lambda got, _: text(got) in ("yes", "no"),
    ),
    "repetition_detection": Works(
        body(repetition_detection={"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 2}),
        lambda got, base: len(ids(got)) < len(ids(base)),
    ),
    "return_token_ids": Works(
        body(return_token_ids=False), lambda got, _: got["choices"][0].get("token_ids") is None
    ),
    "return_tokens_as_token_ids": Works(
        body(logprobs=1, return_tokens_as_token_ids=True),
        lambda got, _: got["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:"),
    ),
}

REFUSED: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.2},
    "logit_bias": {"logit_bias": {"17": 5}},
    "logprob_token_ids": {"logprob_token_ids": [1, 2]},
    "use_beam_search": {"use_beam_search": True},
    "length_penalty": {"length_penalty": 0.5},
    "best_of": {"best_of": 3},
    "watermarking": {"watermarking": True},
    "prompt_embeds": {"prompt_embeds": "AAAA"},
    "suffix": {"suffix": "the end"},
    "thinking_token_budget": {"thinking_token_budget": 3},
    "echo": {"echo": True, "return_token_ids": True},
    "return_token_offsets": {"return_token_offsets": True},
    "routed_experts_prompt_start": {"routed_experts_prompt_start": 1},
    "mm_payload": {"mm_payload": "none"},
    "return_mm_kwargs": {"return_mm_kwargs": False},
}

OUT_OF_RANGE: dict[str, Any] = {
    "temperature": -1,
    "top_p": 1.5,
    "top_k": -7,
    "n": 0,
    "presence_penalty": 9,
    "frequency_penalty": -9,
    "repetition_penalty": 0,
    "max_tokens": -1,
    "min_tokens": -1,
    "logprobs": -9,
    "truncate_prompt_tokens": -9,
    "seed": "x",
    "stop_token_ids": ["x"],
    "bad_words": [1],
}

ELSEWHERE = {
    "model": "test_bad_input",
    "prompt": "test_bad_input",
    "stream": "test_openai_api",
    "stream_options": "test_openai_api",
    "stream_interval": "streams only; below",
    "vllm_xargs": "no key is known yet; unknown ones are dropped, see tests/replicas/verifier",
}


def post(line: Line, **changes: Any) -> httpx.Response:
    """One completion, greedy unless changed."""
    request = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "return_token_ids": True,
        **changes,
    }
    return httpx.post(f"{line.url}/v1/completions", json=request, timeout=120)


@pytest.fixture(scope="session")
def plain() -> dict[str, Answer]:
    """Keeps the greedy answer that every case is compared with."""
    return {}


@pytest.mark.parametrize("name", WORKS)
def test_a_parameter_that_is_taken_has_its_effect(
    drafting_line: Line, plain: dict[str, Answer], name: str
) -> None:
    """Beside the same request without it, the answer shows the parameter's work."""
    if not plain:
        plain.update(post(drafting_line).json())
    case = WORKS[name]
    got = post(drafting_line, **case.body(plain))
    assert got.status_code == 200, got.text
    assert case.shows(got.json(), plain), (text(got.json()), text(plain))


@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_that_cannot_work_is_refused_by_name(drafting_line: Line, name: str) -> None:
    """400 with `param`, and the name in the message."""
    got = post(drafting_line, **REFUSED[name])
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["param"] == name
    assert name in error["message"]


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(drafting_line: Line, name: str) -> None:
    """400 with `param`."""
    got = post(drafting_line, **{name: OUT_OF_RANGE[name]})
    assert got.status_code == 400, got.text
    assert got.json()["error"]["param"].partition(".")[0] == name


def test_the_stream_interval_gathers_tokens(drafting_line: Line) -> None:
    """With an interval of 8, fewer chunks say the same."""

    def chunks(**changes: Any) -> tuple[int, str]:
        lines = post(drafting_line, stream=True, **changes).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if "choices" in line]
        return len(events), "".join(event["choices"][0]["text"] for event in events)

    few, many = chunks(stream_interval=8), chunks()
    assert few[0] < many[0]
    assert few[1] == many[1]


def test_every_field_of_the_table_has_a_case() -> None:
    """A field that the front door lets through is shown to work, or to be refused."""
    table = FIELDS["completion"]
    inert = {name for name, rule in table.items() if rule in (Effect.INERT, Effect.OURS)}
    covered = {*WORKS, *REFUSED, *ELSEWHERE, *inert}
    assert set(table) <= covered, set(table) - covered
