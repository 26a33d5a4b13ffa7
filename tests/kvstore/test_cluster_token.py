"""The secret by which verifiers and draft workers know each other, or why there is none."""

from pathlib import Path
from typing import Any

import pytest

from configs.schema import ClusterConfig
from kvstore.cluster_token import cluster_token, token_file
from kvstore.errors import NoClusterToken

TOKEN = "a token of enough bytes"


def config(run: Path, token: dict[str, str] | None = None, **more: Any) -> ClusterConfig:
    """A cluster named `one` with split drafting."""
    return ClusterConfig.model_validate(
        {
            "name": "one",
            "model": {"name": "m", "source": "/m"},
            "drafting": {"split": {"token": token} if token else {}},
            "folders": {"run": str(run)},
            **more,
        }
    )


def leave(path: Path, text: str, mode: int = 0o600) -> Path:
    """A secret on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.chmod(mode)
    path.write_text(text)
    return path


def test_a_named_secret_is_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config says where the token is, in a file or in the environment."""
    named = leave(tmp_path / "token", f"{TOKEN}\n")
    assert cluster_token(config(tmp_path, {"file": str(named)})) == TOKEN.encode()
    monkeypatch.setenv("PACELINE_TEST_TOKEN", TOKEN)
    assert cluster_token(config(tmp_path, {"env": "PACELINE_TEST_TOKEN"})) == TOKEN.encode()


def test_a_cluster_on_one_machine_keeps_it_in_its_run_folder(tmp_path: Path) -> None:
    """Where none is named, the token is the one that the cluster's start left."""
    leave(token_file(tmp_path / "one"), TOKEN)
    assert cluster_token(config(tmp_path)) == TOKEN.encode()


def test_a_cluster_that_was_not_started_is_told_so(tmp_path: Path) -> None:
    """Without a run folder there is no token, and the message says what to do."""
    with pytest.raises(NoClusterToken, match=r"`one` was started.*drafting\.split\.token"):
        cluster_token(config(tmp_path))


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    """The message names the file that the config names."""
    with pytest.raises(NoClusterToken, match="missing"):
        cluster_token(config(tmp_path, {"file": str(tmp_path / "missing")}))


@pytest.mark.parametrize(("text", "mode"), [("short", 0o600), (TOKEN, 0o644), ("", 0o600)])
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    """Too short, open to others or empty: refused, and never quoted."""
    leave(token_file(tmp_path / "one"), text, mode)
    with pytest.raises(NoClusterToken) as refused:
        cluster_token(config(tmp_path))
    assert not text or text not in str(refused.value)
