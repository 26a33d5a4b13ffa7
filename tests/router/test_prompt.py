"""The router sees the tokens that the engine will see, or says that it can't."""

from pathlib import Path
from typing import Any

import pytest
from prompt_corpus import CHATS, COMPLETIONS, NOT_OURS, RESPONSES, TEMPLATES
from tiny_models import make_tiny_llama

from router.errors import NotTokenized
from router.prompt import PromptReader, PromptSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, for its tokenizer."""
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", layers=1)


@pytest.fixture(scope="module")
def engines(folder: Path) -> Any:
    """vLLM's own rendering and tokenizing, without an engine."""
    from vllm.config import ModelConfig, VllmConfig
    from vllm.renderers.registry import renderer_from_config

    config = ModelConfig(model=str(folder), tokenizer=str(folder), dtype="float32")
    return renderer_from_config(VllmConfig(model_config=config)), config


@pytest.fixture(scope="module", params=TEMPLATES)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat template's file."""
    file = tmp_path_factory.mktemp("templates") / "template.jinja"
    file.write_text(TEMPLATES[request.param])
    return file


@pytest.fixture(scope="module")
def reader(folder: Path, template: Path) -> PromptReader:
    """Ours."""
    return PromptReader(PromptSettings(str(folder), template))


def engines_chat(engines: Any, template: str, body: dict[str, Any]) -> list[int]:
    """The prompt as vLLM's chat handler makes it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    renderer, config = engines
    request = ChatCompletionRequest.model_validate({"model": "m", **body})
    tools = [tool.model_dump() for tool in request.tools] if request.tools else None
    params = request.build_chat_params(template, "auto").with_defaults(
        {"tools": tools, "tokenize": False}
    )
    _, (prompt,) = renderer.render_chat(
        [request.messages], params, request.build_tok_params(config)
    )
    return list(prompt["prompt_token_ids"])


def engines_completion(engines: Any, body: dict[str, Any]) -> list[int]:
    """The prompt as vLLM's completion handler makes it."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.renderers.inputs.preprocess import parse_model_prompt, prompt_to_seq

    renderer, config = engines
    request = CompletionRequest.model_validate({"model": "m", **body})
    prompts = [parse_model_prompt(config, prompt) for prompt in prompt_to_seq(request.prompt)]
    (prompt,) = renderer.render_cmpl(prompts, request.build_tok_params(config))
    return list(prompt["prompt_token_ids"])


def engines_responses(engines: Any, template: str, body: dict[str, Any]) -> list[int]:
    """The prompt as vLLM's responses handler makes it."""
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    renderer, config = engines
    request = ResponsesRequest.model_validate({"model": "m", **body})
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    params = request.build_chat_params(template, "auto").with_defaults(
        {"tools": None, "tokenize": False}
    )
    _, (prompt,) = renderer.render_chat([messages], params, request.build_tok_params(config))
    return list(prompt["prompt_token_ids"])


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_has_the_engines_tokens(
    name: str, reader: PromptReader, template: Path, engines: Any
) -> None:
    """Templates, tools, template arguments, parts and turns, whatever the template takes."""
    import copy

    theirs = engines_chat(engines, template.read_text(), copy.deepcopy(CHATS[name]))
    assert reader.token_ids(CHATS[name]).tolist() == theirs


@pytest.mark.parametrize("name", RESPONSES)
def test_a_responses_request_has_the_engines_tokens(
    name: str, reader: PromptReader, template: Path, engines: Any
) -> None:
    """Text or turns, with instructions."""
    import copy

    theirs = engines_responses(engines, template.read_text(), copy.deepcopy(RESPONSES[name]))
    assert reader.token_ids(RESPONSES[name]).tolist() == theirs


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_completion_has_the_engines_tokens(name: str, reader: PromptReader, engines: Any) -> None:
    """Text or ids, alone or in a list."""
    assert reader.token_ids(COMPLETIONS[name]).tolist() == engines_completion(
        engines, COMPLETIONS[name]
    )


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_cannot_be_tokenized_has_a_reason(name: str, reader: PromptReader) -> None:
    """A word for the metric; the request goes on without its tokens."""
    body, reason = NOT_OURS[name]
    with pytest.raises(NotTokenized) as caught:
        reader.token_ids(body)
    assert caught.value.reason == reason


def test_reading_a_body_leaves_it_as_it_was(reader: PromptReader) -> None:
    """The body belongs to others."""
    import copy

    for body in CHATS.values():
        before = copy.deepcopy(body)
        reader.token_ids(body)
        assert body == before


def test_a_template_takes_parts_where_vllm_says_so(folder: Path, engines: Any) -> None:
    """Found out by rendering, where vLLM reads the syntax tree."""
    from vllm.renderers.hf import _detect_content_format

    for text in TEMPLATES.values():
        ours = PromptReader(PromptSettings(str(folder)))._content_format(text)
        assert ours == _detect_content_format(text, default="string")
