"""Bad input is told clearly and harms nobody: right status, OpenAI shape, counters back."""

import json
import socket

import httpx
import openai
import pytest
from lines import MODEL, PORTS, Line

pytestmark = pytest.mark.line

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"model": MODEL, "prompt": "Hi", "max_tokens": 4}
VOCABULARY = 49152


def chat(**changes: object) -> bytes:
    return json.dumps(CHAT | changes).encode()


def text(**changes: object) -> bytes:
    return json.dumps(TEXT | changes).encode()


BAD = {
    "malformed JSON": ("/v1/chat/completions", b'{"model": ', 400, None),
    "a list": ("/v1/chat/completions", b"[]", 400, None),
    "null": ("/v1/completions", b"null", 400, None),
    "an empty body": ("/v1/completions", b"", 400, None),
    "invalid UTF-8": ("/v1/completions", b'{"model": "\xff\xfe"}', 400, None),
    "deep nesting": ("/v1/chat/completions", b"[" * 10_000, 400, None),
    "messages of a wrong type": ("/v1/chat/completions", chat(messages={"a": 1}), 400, "messages"),
    "a wrong temperature": ("/v1/chat/completions", chat(temperature="hot"), 400, "temperature"),
    "a temperature below zero": ("/v1/completions", text(temperature=-1), 400, "temperature"),
    "an unknown model": ("/v1/chat/completions", chat(model="gpt-9"), 404, "model"),
    "an unknown field": ("/v1/completions", text(temprature=1), 400, "temprature"),
    "no prompt at all": ("/v1/completions", text(prompt=[]), 400, "prompt"),
    "no messages at all": ("/v1/chat/completions", chat(messages=[]), 400, "messages"),
    "a negative id": ("/v1/completions", text(prompt=[1, -1]), 400, "prompt"),
    "the first id too many": ("/v1/completions", text(prompt=[VOCABULARY]), 400, "prompt"),
    "an id beyond 63 bits": ("/v1/completions", text(prompt=[1 << 63]), 400, "prompt"),
    "a stop id outside": (
        "/v1/completions",
        text(stop_token_ids=[VOCABULARY]),
        400,
        "stop_token_ids",
    ),
    "allowed ids outside": (
        "/v1/completions",
        text(allowed_token_ids=[VOCABULARY]),
        400,
        "allowed_token_ids",
    ),
    "a prompt over the context": ("/v1/completions", text(prompt="word " * 4000), 400, None),
    "too many tokens": ("/v1/completions", text(max_tokens=100_000), 400, None),
    "a bad schema": (
        "/v1/chat/completions",
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": 7}},
            }
        ),
        400,
        None,
    ),
    "a schema without its wrapper": (
        "/v1/chat/completions",
        chat(response_format={"type": "json_schema"}),
        400,
        None,
    ),
}


def error_of(answer: httpx.Response) -> dict[str, object]:
    """The error, after a look at its shape."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert "Traceback" not in body["error"]["message"]
    assert "pydantic" not in body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(drafting_line: Line, case: str) -> None:
    """The right status and shape, the field by name, and the next good request answered."""
    path, body, status, param = BAD[case]
    answer = httpx.post(
        drafting_line.url + path,
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == status, answer.text
    error = error_of(answer)
    if param is not None:
        assert error["param"] == param
        assert str(param) in str(error["message"])
    good = httpx.post(f"{drafting_line.url}/v1/completions", json=TEXT, timeout=60)
    assert good.status_code == 200


def test_a_body_over_the_limit_is_a_413(drafting_line: Line) -> None:
    """10 MB are refused by the front door; the engine never sees them."""
    body = text(prompt="x" * 10_000_000)
    for url in (drafting_line.url, f"http://127.0.0.1:{drafting_line.replica_ports()[0]}"):
        answer = httpx.post(
            f"{url}/v1/completions",
            content=body,
            headers={"content-type": "application/json"},
            timeout=60,
        )
        assert answer.status_code == 413, answer.text
        error_of(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/no/such/path", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/load_lora_adapter", 404),
    ],
)
def test_wrong_routes_are_told_in_the_same_shape(
    drafting_line: Line, method: str, path: str, status: int
) -> None:
    """404 and 405 look like every other error."""
    answer = httpx.request(method, drafting_line.url + path, json={"model": MODEL})
    assert answer.status_code == status
    error_of(answer)


def test_the_openai_client_shows_the_message(drafting_line: Line) -> None:
    """The client's exception class fits the status and carries our words."""
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        drafting_line.client().chat.completions.create(**(CHAT | {"model": "gpt-9"}))
    with pytest.raises(openai.BadRequestError, match="temperature"):
        drafting_line.client().chat.completions.create(**(CHAT | {"temperature": 9}))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_work(drafting_line: Line, stream: bool) -> None:
    """The engine drops the request long before its end and every gauge goes back."""
    drafting_line.settle()
    before = drafting_line.counters()
    assert before["requests_in_flight"] == 0
    body = json.dumps(
        {"model": MODEL, "prompt": "Once", "max_tokens": 1500, "stream": stream, "ignore_eos": True}
    )
    with socket.create_connection(("127.0.0.1", PORTS["http"])) as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        seen = b""
        while stream and seen.count(b"data:") < 3:
            seen += connection.recv(4096)
        drafting_line.counters_until(lambda now: now["requests_running"] == 1, within_s=20)
    # Two seconds to notice and one to tell; a busy machine takes longer.
    drafting_line.counters_until(lambda now: now == before, within_s=8)
    assert "outcome=aborted" in drafting_line.replica_logs()
