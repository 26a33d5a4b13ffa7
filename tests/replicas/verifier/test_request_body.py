"""A body is whole, small, UTF-8, JSON and one object, or it is refused."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from replicas.errors import BodyTooLarge, BodyTooSlow, ClientLeft, InvalidRequest
from replicas.verifier.request_body import MAX_DEPTH, Upload, encode, parse_object

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)

NO_OBJECTS = {
    "empty": b"",
    "blank": b" \n",
    "array": b"[]",
    "true": b"true",
    "null": b"null",
    "number": b"123",
    "string": b'"{}"',
    "half an object": b'{"a": ',
    "no closing brace": b'{"a": 1',
    "two objects": b"{} {}",
    "trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "bare key": b"{a: 1}",
    "comment": b'{"a": 1} // x',
    "control character": b'{"a": "\n"}',
    "bad escape": b'{"a": "\\x"}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "too large a float": b'{"a": 1e999}',
    "too long an integer": b'{"a": ' + b"9" * 5000 + b"}",
    "leading zero": b'{"a": 01}',
    "same key twice": b'{"a": 1, "a": 1}',
    "same key twice inside": b'{"a": [{"b": 1, "\\u0062": 2}]}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-32": '{"a": 1}'.encode("utf-32-le"),
    "Latin-1": '{"a": "é"}'.encode("latin-1"),
    "raw surrogate": b'{"a": "\xed\xa0\x80"}',
    "overlong UTF-8": b'{"a": "\xc0\xaf"}',
    "10,000 arrays": b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 objects": b'{"a": ' * 10_000 + b"1" + b"}" * 10_000,
    "10,000 opened": b"[" * 10_000,
    "one too deep": b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
}


@pytest.mark.parametrize("raw", NO_OBJECTS.values(), ids=NO_OBJECTS.keys())
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    """In words of ours, whatever the parser fell over."""
    with pytest.raises(InvalidRequest, match="body") as caught:
        parse_object(raw)
    assert caught.value.__cause__ is None


def test_half_a_surrogate_pair_is_refused_on_the_way_out() -> None:
    """It is JSON, but no text that anybody could tokenize."""
    with pytest.raises(InvalidRequest, match="surrogate"):
        encode(parse_object(b'{"a": "\\ud800"}'))


@given(st.dictionaries(TEXT, VALUES))
def test_an_object_comes_out_as_it_went_in(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert json.loads(encode(value)) == value


def upload(*messages: Message) -> Upload:
    """An upload that brings these messages, and then nothing more."""
    queue = list(messages)

    async def receive() -> Message:
        if not queue:
            await asyncio.sleep(3600)
        return queue.pop(0)

    return Upload(receive)


def chunk(body: bytes, more_body: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def test_chunks_make_one_body() -> None:
    body = upload(chunk(b"ab"), chunk(b""), chunk(b"c", more_body=False))
    assert await body.read(3, 1) == b"abc"
    assert body.is_whole


async def test_reading_stops_at_the_bound() -> None:
    """Chunks that never end cost no more than the bound and one message."""
    body = upload(chunk(b"ab"), chunk(b"cd"), chunk(b"never read"))
    with pytest.raises(BodyTooLarge):
        await body.read(3, 1)
    assert not body.is_whole
    assert await body.receive() == chunk(b"never read")


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    with pytest.raises(BodyTooSlow):
        await upload(chunk(b"ab")).read(3, 0.01)


async def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientLeft):
        await upload(chunk(b"ab"), {"type": "http.disconnect"}).read(3, 1)


async def test_the_app_gets_the_replacement_and_then_the_truth() -> None:
    """A disconnect reaches the app, so that it can stop generating."""
    body = upload(chunk(b"{}", more_body=False), {"type": "http.disconnect"})
    await body.read(3, 1)
    body.replacement = b"new"
    assert await body.receive() == chunk(b"new", more_body=False)
    assert await body.receive() == {"type": "http.disconnect"}
