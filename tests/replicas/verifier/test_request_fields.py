"""The field tables know every field there is, so that none can be ignored."""

from typing import Any

import pytest

from replicas.verifier.request_fields import FIELDS, NESTED, Effect
from replicas.verifier.routes import GENERATING, BodyKind


def _vllm_models() -> dict[BodyKind, tuple[Any, ...]]:
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.serve.tokenize import protocol as tokenize

    return {
        "chat": (ChatCompletionRequest,),
        "completion": (CompletionRequest,),
        "responses": (ResponsesRequest,),
        "messages": (anthropic.AnthropicMessagesRequest,),
        "count_tokens": (anthropic.AnthropicCountTokensRequest,),
        "tokenize": (tokenize.TokenizeCompletionRequest, tokenize.TokenizeChatRequest),
        "detokenize": (tokenize.DetokenizeRequest,),
    }


def _documented() -> dict[BodyKind, set[str]]:
    """The fields that OpenAI's and Anthropic's own clients send."""
    from anthropic.types import message_count_tokens_params as count_tokens
    from anthropic.types import message_create_params as messages
    from openai.types import completion_create_params as completion
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    return {
        "chat": set(chat.CompletionCreateParamsBase.__annotations__),
        "completion": set(completion.CompletionCreateParamsBase.__annotations__),
        "responses": set(responses.ResponseCreateParamsBase.__annotations__),
        "messages": set(messages.MessageCreateParamsBase.__annotations__),
        "count_tokens": set(count_tokens.MessageCountTokensParams.__annotations__),
    }


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_of_vllms_own_model_has_a_decision(kind: BodyKind) -> None:
    """A new version of vLLM with a new field asks for a new line."""
    known = {name for model in _vllm_models()[kind] for name in model.model_fields}
    assert known <= set(FIELDS[kind])


@pytest.mark.parametrize("kind", FIELDS)
def test_a_field_is_obeyed_only_where_vllm_has_it(kind: BodyKind) -> None:
    """What vLLM's model does not have, vLLM takes without a word."""
    known = {name for model in _vllm_models()[kind] for name in model.model_fields}
    obeyed = {name for name, rule in FIELDS[kind].items() if rule is Effect.OBEYED}
    assert obeyed <= known


@pytest.mark.parametrize("kind", _documented())
def test_every_documented_field_has_a_decision(kind: BodyKind) -> None:
    """No client library sends a field that is called unknown."""
    assert _documented()[kind] <= set(FIELDS[kind])


@pytest.mark.parametrize("kind", GENERATING)
def test_every_request_to_the_engine_can_carry_a_salt(kind: BodyKind) -> None:
    """Where vLLM's model had no such field, tenants would share their cache."""
    (model,) = _vllm_models()[kind]
    assert "cache_salt" in model.model_fields


def test_fields_inside_objects_are_vllms_too() -> None:
    """Among them none that vLLM's own models do not have."""
    from vllm.entrypoints.generate.base.protocol import StreamOptions
    from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams

    for name, model in (
        ("structured_outputs", StructuredOutputsParams),
        ("repetition_detection", RepetitionDetectionParams),
    ):
        public = {field for field in model.__dataclass_fields__ if not field.startswith("_")}
        assert set(NESTED[name]) == public
    assert set(StreamOptions.model_fields) <= set(NESTED["stream_options"])
