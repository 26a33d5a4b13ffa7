"""Secrets are read by name, and refused where others can read them."""

import os

import pytest

from configs import SecretError, read_secret
from configs.sections.values import SecretRef


@pytest.fixture
def key_file(tmp_path):
    """A secret that only its owner can read."""
    path = tmp_path / "key"
    path.write_text("  s3cret\n")
    path.chmod(0o600)
    return path


def test_a_file_and_a_variable_hold_a_secret(key_file, monkeypatch) -> None:
    """Either way, surrounding white space is not part of it."""
    monkeypatch.setenv("KEY", "s3cret\n")
    assert read_secret(SecretRef(file=key_file)) == "s3cret"
    assert read_secret(SecretRef(env="KEY")) == "s3cret"


def test_a_missing_secret_is_named(tmp_path, monkeypatch) -> None:
    """The message says which variable or file, and why not."""
    monkeypatch.delenv("KEY", raising=False)
    with pytest.raises(SecretError, match="environment variable KEY is not set"):
        read_secret(SecretRef(env="KEY"))
    with pytest.raises(SecretError, match="no-key cannot be read: No such file"):
        read_secret(SecretRef(file=tmp_path / "no-key"))
    with pytest.raises(SecretError, match="cannot be read: Is a directory"):
        read_secret(SecretRef(file=tmp_path))


def test_an_empty_secret_is_none(key_file, monkeypatch) -> None:
    """White space protects nothing."""
    key_file.write_text(" \n")
    monkeypatch.setenv("KEY", "")
    for ref in (SecretRef(file=key_file), SecretRef(env="KEY")):
        with pytest.raises(SecretError, match="is empty"):
            read_secret(ref)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_of_ours_that_others_can_read_is_refused(key_file, mode) -> None:
    """The message names the command that closes it, and not the secret."""
    key_file.chmod(mode)
    with pytest.raises(SecretError, match=f"chmod 600 {key_file}") as caught:
        read_secret(SecretRef(file=key_file))
    assert "s3cret" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_that_its_owner_gave_us_by_group_is_read(key_file) -> None:
    """As Kubernetes hands a secret to a process that is not its owner; never to all."""
    os.chown(key_file, 12345, os.getegid())
    key_file.chmod(0o640)
    assert read_secret(SecretRef(file=key_file)) == "s3cret"
    key_file.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 640"):
        read_secret(SecretRef(file=key_file))


def test_bytes_are_no_secret(key_file) -> None:
    """A binary file is a mistake."""
    key_file.write_bytes(b"\xff\xfe")
    with pytest.raises(SecretError, match="does not hold text"):
        read_secret(SecretRef(file=key_file))
