"""Keys are known by their hash, tenants by their key, domains by their tenant."""

import hashlib
import hmac
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import KeysFileError
from kvstore.keys import cache_salt, parse_keys, sharing_domain

KEY = "sk-of-ada-0123456789"
HASHED = f"sha256:{hashlib.sha256(b'sk-of-bob').hexdigest()}"

FIELDS = st.tuples(*[st.text(max_size=8)] * 4)


def test_a_plain_and_a_hashed_key_name_their_tenants() -> None:
    """Comments and empty lines count for nothing; a tenant may have several keys."""
    keys = parse_keys(f"# who\n\n  ada {KEY}\nbob {HASHED}\nada second-key\n")
    assert keys.tenant_of(KEY.encode()) == "ada"
    assert keys.tenant_of(b"second-key") == "ada"
    assert keys.tenant_of(b"sk-of-bob") == "bob"
    assert keys.tenant_of(HASHED.encode()) is None
    assert keys.tenant_of(b"") is None


def test_a_key_table_shows_neither_keys_nor_hashes() -> None:
    """It may stand in a log line or a traceback."""
    assert repr(parse_keys(f"ada {KEY}")) == "KeyTable()"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ada", 1),
        (f"\nada {KEY} more", 2),
        (f"# x\n-ada {KEY}", 2),
        (f"a/b {KEY}", 1),
        (f"{'a' * 65} {KEY}", 1),
        ("ada sha256:1234", 1),
        (f"ada sha256:{'g' * 64}", 1),
        ("ada schlüssel", 1),
        (f"ada {KEY}\n\nbob {KEY}", 3),
        (f"ada sk-of-bob\nada {HASHED}", 2),
        ("", 0),
        ("# nobody\n", 0),
    ],
)
def test_a_line_that_is_no_key_is_named_by_its_number(text: str, line: int) -> None:
    """The message says where and what to write, and never quotes the file."""
    with pytest.raises(KeysFileError) as caught:
        parse_keys(text)
    assert caught.value.line == line
    for word in text.split():
        assert len(word) < 5 or word not in str(caught.value)


def test_every_key_is_compared_whatever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up takes as long for the first key as for none."""
    keys = parse_keys("a key-a\nb key-b\nc key-c")
    compared = []

    def counting(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for key in (b"key-a", b"key-c", b"nobody's"):
        compared.clear()
        keys.tenant_of(key)
        assert len(compared) == 3


def test_domains_differ_by_tenant_and_by_secret() -> None:
    """Whoever does not know the secret cannot name another tenant's domain."""
    domains = {sharing_domain(tenant, secret) for tenant in ("a", "b") for secret in (b"x", b"y")}
    assert len(domains) == 4
    assert all(re.fullmatch(r"[0-9a-f]{64}", domain) for domain in domains)


def test_the_secret_derived_from_keys_depends_on_nothing_else() -> None:
    """The order of lines and whether keys are hashed do not matter; the keys do."""
    first = parse_keys("ada sk-of-ada\nbob sk-of-bob").derived_secret()
    assert parse_keys(f"bob {HASHED}\nada sk-of-ada").derived_secret() == first
    assert parse_keys("ada sk-of-ada").derived_secret() != first


@given(FIELDS, FIELDS)
def test_salts_are_equal_for_equal_fields_only(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    """Domain, model, weights and type never run together."""
    assert (cache_salt(*one) == cache_salt(*other)) == (one == other)
    assert re.fullmatch(r"[0-9a-f]{64}", cache_salt(*one))


def test_moving_a_border_between_fields_changes_the_salt() -> None:
    """The case that plain joining gets wrong."""
    assert cache_salt("ab", "c", "", "") != cache_salt("a", "bc", "", "")
