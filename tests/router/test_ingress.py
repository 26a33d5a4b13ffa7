"""What the router makes of a body before any policy sees it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ingress import part_there, routing_payload


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'{"model": ', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"{}"],
)
def test_what_cannot_be_read_is_routed_without_it(body: bytes) -> None:
    """No hostile body is an error of the router's."""
    assert routing_payload(body) is None


def test_a_request_is_seen_whole() -> None:
    """Every field can be read by its name."""
    payload = routing_payload(msgspec.json.encode({"model": "m", "prompt": [1, 2], "user": "u"}))
    assert payload is not None
    assert (payload.model, payload.prompt, payload.user) == ("m", [1, 2], "u")


def test_a_responses_request_is_seen() -> None:
    """Its prompt is in `input`."""
    payload = routing_payload(msgspec.json.encode({"model": "m", "input": "hi"}))
    assert payload is not None
    assert payload.input == "hi"


@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    """Whatever comes, routing goes on."""
    routing_payload(body)


def test_of_a_long_body_the_beginning_is_seen() -> None:
    """As far as HAProxy sends it, where it says that there is more."""
    cut = b'{"model": "m", "messages": [{"role": "user", "content": "Once upon a ti'
    payload = routing_payload(cut, is_cut=True)
    assert payload is not None
    assert payload.messages == [{"role": "user", "content": "Once upon a ti"}]
    assert routing_payload(cut) is None


@pytest.mark.parametrize(
    ("said", "part"),
    [(None, 1.0), ("256/1024", 0.25), ("0/9", 1 / 9), ("9/0", 1.0), ("a/b", 1.0), ("-1/5", 1.0)],
)
def test_haproxy_says_how_much_is_there(said: str | None, part: float) -> None:
    """Anything else means all of it."""
    assert part_there(said) == part
