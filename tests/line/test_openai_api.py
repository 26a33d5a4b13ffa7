"""The OpenAI API through HAProxy, router, front door and engine, with the openai client."""

import json

import openai
import pytest
from lines import LORA, MODEL, Line

pytestmark = pytest.mark.line

QUESTION = [{"role": "user", "content": "Write the numbers from 1 to 15, separated by commas."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(drafting_line: Line) -> openai.OpenAI:
    """A client of the line that drafts."""
    return drafting_line.client()


def test_a_chat_streams_what_it_answers_at_once(client: openai.OpenAI) -> None:
    """Joined deltas equal the whole answer; usage comes last, alone, and agrees."""
    options = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage is not None for chunk in chunks].count(True) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 40


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_a_stream_brings_usage_only_when_asked(
    client: openai.OpenAI, options: dict[str, object]
) -> None:
    """No chunk without a choice unless `include_usage` is true."""
    chunks = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, stream=True, **options
    )
    assert all(chunk.choices for chunk in chunks)


def test_completions_take_text_and_token_ids(client: openai.OpenAI) -> None:
    """The same prompt as text and as ids gives the same answer."""
    text = "The capital of France is"
    ids = client.post("/../tokenize", cast_to=object, body={"model": MODEL, "prompt": text})
    options = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    from_text = client.completions.create(prompt=text, **options)
    from_ids = client.completions.create(prompt=ids["tokens"], **options)
    assert from_text.choices[0].text == from_ids.choices[0].text


def test_two_choices_come_back_in_one_answer(client: openai.OpenAI) -> None:
    """n=2: indexes 0 and 1, the prompt counted once."""
    one = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=10)
    two = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=10, n=2, temperature=0.9, seed=3
    )
    assert sorted(choice.index for choice in two.choices) == [0, 1]
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 20


def test_a_required_tool_is_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    """Streamed and not, the same call, with arguments that parse and fit the schema."""
    options = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Weather in Basel for 3 days?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 96,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**options)
    call = whole.choices[0].message.tool_calls[0].function
    arguments = json.loads(call.arguments)
    assert call.name == "get_weather"
    assert set(arguments) == {"city", "days"}
    assert isinstance(arguments["days"], int)
    assert whole.choices[0].finish_reason == "tool_calls"
    streamed = ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            streamed += piece.function.arguments or ""
    assert json.loads(streamed) == arguments


def test_a_json_schema_is_kept_while_tokens_are_drafted(client: openai.OpenAI) -> None:
    """The answer parses and has exactly the schema's keys."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe Kim, aged 31, as JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        },
        max_tokens=60,
        temperature=0,
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_logprobs_name_the_tokens_that_were_said(client: openai.OpenAI) -> None:
    """One entry a token, each among its own top three, none above zero."""
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 12
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert entry.token in {top.token for top in entry.top_logprobs}


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_never_reaches_the_client(client: openai.OpenAI, stream: bool) -> None:
    """A stop string that spans several tokens is cut whole, streamed or not."""
    options = {
        "model": MODEL,
        "messages": QUESTION,
        "max_tokens": 60,
        "temperature": 0,
        "stop": ["5, 6, 7"],
    }
    answer = client.chat.completions.create(**options, stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert reason == "stop"
    assert text.endswith("4, ")
    assert "5" not in text


@pytest.mark.parametrize(
    "prompt", ["日本の首都はどこですか。", "Repeat: 🚴‍♀️🚴🏽 🎉🎉🎉", "用中文写一句关于春天的话。"]
)
def test_characters_of_several_tokens_arrive_whole(client: openai.OpenAI, prompt: str) -> None:
    """Streamed text equals whole text, with no half character in between."""
    options = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 40,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**options).choices[0].message.content
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**options, stream=True)
    ]
    assert "".join(pieces) == whole
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_an_adapter_answers_by_its_own_name(client: openai.OpenAI) -> None:
    """The adapter's answer differs from the base model's, and both stay what they were."""

    def ask(model: str) -> str:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=16, temperature=0
        )
        assert answer.model == model
        return answer.choices[0].message.content

    base, adapted = ask(MODEL), ask(LORA)
    assert base != adapted
    assert (ask(MODEL), ask(LORA)) == (base, adapted)
    assert {model.id for model in client.models.list()} == {MODEL, LORA}
    assert client.models.retrieve(LORA).id == LORA


def test_responses_and_messages_answer(client: openai.OpenAI, drafting_line: Line) -> None:
    """The routes of newer clients work through the line, too."""
    import anthropic

    response = client.responses.create(
        model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0
    )
    assert response.output_text
    messages = anthropic.Anthropic(
        base_url=drafting_line.url, api_key="none", max_retries=0
    ).messages.create(
        model=MODEL, max_tokens=16, messages=[{"role": "user", "content": "Say hello."}]
    )
    assert messages.content[0].text


def test_embeddings_are_a_clear_404(client: openai.OpenAI) -> None:
    """The error says that this model makes none."""
    with pytest.raises(openai.NotFoundError) as error:
        client.embeddings.create(model=MODEL, input="x")
    assert "embeddings" in error.value.message
