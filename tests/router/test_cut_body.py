"""A body that is cut anywhere says what it had said until then."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cut_body import closed

BODY = {
    "model": "m",
    "messages": [
        {"role": "system", "content": 'Say "yes", {no}: [é\\\U0001f600].'},
        {"role": "user", "content": [{"type": "text", "text": "And, then?"}]},
    ],
    "temperature": 0.25,
    "stream": True,
    "stop": None,
}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def is_beginning(part: Any, whole: Any) -> bool:
    """Whether `part` says nothing that `whole` doesn't, and in its order."""
    if isinstance(part, dict):
        return list(part) == list(whole)[: len(part)] and all(
            is_beginning(value, whole[key]) for key, value in part.items()
        )
    if isinstance(part, list):
        return len(part) <= len(whole) and all(map(is_beginning, part, whole))
    return whole.startswith(part) if isinstance(part, str) else part == whole


@pytest.mark.parametrize("ascii_only", [True, False])
def test_wherever_a_body_is_cut_its_beginning_is_read(ascii_only: bool) -> None:
    """At every byte; what is read only grows, and in the end is all of it."""
    raw = json.dumps(BODY, ensure_ascii=ascii_only).encode()
    longest = 0
    for length in range(1, len(raw) + 1):
        part = msgspec.json.decode(closed(raw[:length]))
        assert is_beginning(part, BODY)
        told = len(json.dumps(part.get("messages", [])))
        assert told >= longest - len('"}]}')
        longest = max(longest, told)
    assert part == BODY


@given(st.dictionaries(st.text(), values, max_size=5), st.floats(0, 1), st.booleans())
def test_any_object_is_read_as_far_as_it_is_there(body: Any, part: float, spaced: bool) -> None:
    """Whatever it holds."""
    raw = json.dumps(body, indent=1 if spaced else None).encode()
    there = raw[: 1 + int(part * len(raw))]
    assert is_beginning(json.loads(closed(there) or b"-"), body)


@given(st.binary(max_size=60))
def test_what_is_no_object_is_not_read(body: bytes) -> None:
    """Nothing, or something that a parser may refuse; never an error."""
    found = closed(body)
    assert found is None or found.startswith(body[:1])


@pytest.mark.parametrize("body", [b"", b"x", b'"', b"]", b'{"a": ]', b"[1}", b",{"])
def test_nonsense_is_nothing(body: bytes) -> None:
    """It is not JSON."""
    assert closed(body) is None


def test_a_long_string_without_an_end_takes_no_time() -> None:
    """Each byte is looked at once."""
    raw = b'{"prompt": "' + b"\\\\a" * 400_000
    assert len(closed(raw) or b"") == len(raw) + 2
