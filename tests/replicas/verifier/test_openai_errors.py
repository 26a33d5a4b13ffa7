"""Every error has OpenAI's shape, and says nothing of Python's."""

import json
import pickle

import pytest

from replicas import errors
from replicas.errors import RequestRefused
from replicas.verifier.engine_errors import LONGEST_MESSAGE, of_engine, of_first_event
from replicas.verifier.openai_errors import INTERNAL, REFUSALS, ApiError, of_refusal
from replicas.verifier.request_fields import FIELDS

CHAT = FIELDS["chat"]


def test_every_refusal_has_a_status_and_a_word_for_the_metric() -> None:
    refusals = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, RequestRefused)
        and kind is not RequestRefused
    }
    assert refusals == set(REFUSALS)
    assert len({refusal.reason for refusal in REFUSALS.values()}) == len(REFUSALS)


def test_an_error_crosses_processes_unchanged() -> None:
    """Ray pickles what a replica raises."""
    error = errors.InvalidRequest("no", "n", "invalid_value")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_refusals_own_code_wins_over_its_kinds() -> None:
    assert of_refusal(errors.NotAuthenticated("who?")).code == "invalid_api_key"
    assert of_refusal(errors.InvalidRequest("no", "n", "invalid_value")).code == "invalid_value"


@pytest.mark.parametrize("for_anthropic", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 405, 408, 413, 418, 422, 429, 500, 503, 599])
def test_the_body_has_four_keys_whatever_the_status(status: int, for_anthropic: bool) -> None:
    body = json.loads(ApiError(status, "x").to_json(for_anthropic))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"].endswith("_error") or body["error"]["type"].endswith("_large")
    assert body.get("type") == ("error" if for_anthropic else None)


def vllm_error(message: str, param: str | None = None, code: int = 400) -> bytes:
    return json.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}
    ).encode()


@pytest.mark.parametrize(
    ("message", "param", "shown", "field"),
    [
        ("top_p must be in (0, 1], got 2.0.", None, "top_p must be in (0, 1], got 2.0.", "top_p"),
        ("`tools` must not be empty.", None, "`tools` must not be empty.", "tools"),
        (
            "temperature must be non-negative, got -1. (parameter=temperature, value=-1)",
            "temperature",
            "temperature must be non-negative, got -1.",
            "temperature",
        ),
        ("A value (value=[1, 2])", None, "A value", None),
        ("Chat template is passed with request.", "hot", "Chat template is passed", None),
        ("The model `x` does not exist.", None, "The model `x` does not exist.", "model"),
        ("The context is 8 tokens.", "input_tokens", "The context is 8 tokens.", "messages"),
        ("Wrong choice.", "tool_choice.function", "Wrong choice.", "tool_choice.function"),
    ],
)
def test_vllms_words_stay_and_its_values_go(
    message: str, param: str | None, shown: str, field: str | None
) -> None:
    """`param` is a field of the request or null, whatever vLLM put there."""
    error = of_engine(400, vllm_error(message, param), CHAT)
    assert error.message.startswith(shown)
    assert "parameter=" not in error.message and "value=" not in error.message
    assert error.param == field


def test_a_validation_error_is_a_sentence() -> None:
    """Not a list of Python dicts with the user's own values."""
    message = (
        "2 validation errors:\n"
        "  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
        "'input': 'secret text'}\n"
        "  {'type': 'list_type', 'loc': 'body.stop', 'msg': \"Input shouldn't be this\", "
        "'input': 'secret text'}"
    )
    error = of_engine(400, vllm_error(message, "body.stop"), CHAT)
    assert error.message == "stop: Input should be a valid string; or: Input shouldn't be this"
    assert error.param == "stop"


def test_the_branches_of_a_union_are_not_a_field() -> None:
    message = (
        "1 validation error:\n  {'type': 'missing', 'loc': "
        "'body.messages.0.ChatCompletionUserMessageParam.content', 'msg': 'Field required'}"
    )
    assert of_engine(400, vllm_error(message), CHAT).param == "messages.0.content"


@pytest.mark.parametrize(
    "text",
    [
        "'NoneType' object is not subscriptable",
        "string indices must be integers, not 'str'",
        "'<' not supported between instances of 'str' and 'int'",
        "1 validation error for ChatCompletionRequest",
        "For further information visit https://errors.pydantic.dev/2.12/v/missing",
    ],
)
def test_pythons_own_words_do_not_reach_a_client(text: str) -> None:
    assert text not in of_engine(400, vllm_error(text), CHAT).message


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b'{"detail":"Not Found"}', "Not Found"),
        (401, b'{"error":"Unauthorized"}', "Unauthorized"),
        (405, b"Method Not Allowed", "Method Not Allowed"),
        (503, b"", "Service Unavailable."),
        (400, b"[]", "Bad Request."),
        (422, b'{"detail":[{"loc":["body"],"msg":"x"}]}', "Unprocessable"),
        (503, b'{"error":"The model is currently scaling."}', "The model is currently scaling."),
        (400, b'{"type":"error","error":{"type":"x","message":"no"}}', "no"),
        (500, vllm_error("KeyError: 'secret'", code=500), INTERNAL),
        (599, b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_any_other_outline_becomes_ours(status: int, body: bytes, message: str) -> None:
    error = of_engine(status, body, CHAT)
    assert error.status == status
    assert error.message.startswith(message)


def test_a_message_that_is_a_book_is_cut() -> None:
    assert len(of_engine(400, b"x" * 100_000, CHAT).message) == LONGEST_MESSAGE


def test_a_stream_that_starts_with_an_error_is_that_error() -> None:
    event = b"data: " + vllm_error("min_tokens must be less") + b"\n\n"
    error = of_first_event(event, CHAT)
    assert error is not None
    assert (error.status, error.param) == (400, "min_tokens")


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b"data: " + vllm_error("x", code=503) + b"\n\n", 503),
        (b"data: " + vllm_error("x", code=200) + b"\n\n", 500),
        (b'data: {"error": "x"}\n\n', 500),
        (b'data: {"error":', 500),
        (b'event: error\ndata: {"type":"error"}\n\n', 400),
    ],
)
def test_the_status_is_in_the_event(event: bytes, status: int) -> None:
    error = of_first_event(event, CHAT)
    assert error is not None
    assert error.status == status


@pytest.mark.parametrize(
    "event", [b'data: {"id": "x", "error": 1}\n\n', b": ping\n\n", b"", b"event: message_start\n"]
)
def test_a_stream_that_starts_with_an_answer_is_no_error(event: bytes) -> None:
    assert of_first_event(event, CHAT) is None
