"""Which headers count, and which the engine never sees."""

import pytest

from replicas.errors import InvalidRequest, NotAuthenticated
from replicas.verifier.request_headers import (
    MULTIPLEXED_MODEL,
    STRIPPED,
    STRIPPED_PREFIXES,
    check_headers,
    forwarded,
    key_of,
    request_id_of,
)

JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer k")],
        [(b"authorization", b"bearer   k ")],
        [(b"x-api-key", b"k")],
        [(b"authorization", b"Bearer k"), (b"x-api-key", b"k")],
    ],
)
def test_a_key_comes_in_either_header(headers: list[tuple[bytes, bytes]]) -> None:
    assert key_of(headers) == b"k"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer k"), (b"authorization", b"Bearer l")],
        [(b"authorization", b"Basic k"), (b"x-api-key", b"k")],
    ],
)
def test_no_key_and_two_keys_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """A router in front may have read the other one."""
    with pytest.raises(NotAuthenticated):
        key_of(headers)


@pytest.mark.parametrize("value", [b"k", b"Bearer", b"Bearer k l", b"Basic k", b"Bearer\tk", b""])
def test_another_scheme_is_nobodys_key(value: bytes) -> None:
    assert key_of([(b"authorization", value)]) == b""


def test_what_the_server_decides_is_stripped_and_the_rest_stays() -> None:
    """Tracing stays, and the client's own headers."""
    stripped = [(name, b"1") for name in STRIPPED]
    stripped += [(prefix + b"x", b"1") for prefix in STRIPPED_PREFIXES]
    kept = [(b"traceparent", b"00-1-2-00"), (b"x-request-id", b"abc"), (b"user-agent", b"me")]
    assert forwarded([*stripped, *kept], None) == kept


def test_a_rewritten_body_brings_its_own_length() -> None:
    """Chunked or not, it is one body of known length now."""
    sent = [JSON, (b"content-length", b"9"), (b"transfer-encoding", b"chunked")]
    assert forwarded(sent, b"{}") == [JSON, (b"content-length", b"2")]


@pytest.mark.parametrize("value", [b"a b", b"a\nb", b"x" * 129, b"", "é".encode()])
def test_a_request_id_that_would_garble_a_log_is_dropped(value: bytes) -> None:
    headers = [(b"x-request-id", value)]
    assert request_id_of(headers) is None
    assert forwarded(headers, None) == []


@pytest.mark.parametrize("name", [MULTIPLEXED_MODEL, MULTIPLEXED_MODEL.replace(b"-", b"_")])
def test_an_adapter_in_a_header_is_refused(name: bytes) -> None:
    """Ray has read it before us, so stripping it would change nothing."""
    with pytest.raises(InvalidRequest):
        check_headers([JSON, (name, b"a")], needs_json=True)


@pytest.mark.parametrize(
    "value", [None, b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonx"]
)
def test_a_body_must_say_that_it_is_json(value: bytes | None) -> None:
    headers = [] if value is None else [(b"content-type", value)]
    with pytest.raises(InvalidRequest):
        check_headers(headers, needs_json=True)
    check_headers(headers, needs_json=False)


@pytest.mark.parametrize("value", [b"application/json", b"Application/JSON ; charset=utf-8"])
def test_json_may_come_with_parameters(value: bytes) -> None:
    check_headers([(b"content-type", value)], needs_json=True)
