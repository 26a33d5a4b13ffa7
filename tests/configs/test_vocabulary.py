"""What token ids mean is told apart, and what does not matter for them is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.facts import gather_facts
from configs.schema import ClusterConfig
from configs.vocabulary import vocabulary_fingerprint

VOCABULARY = {"a": 0, "b": 1, "ab": 2}


def write(folder: Path, vocabulary: Any = VOCABULARY, added: Any = (), **rest: Any) -> Path:
    """A folder with a tokenizer.json."""
    folder.mkdir(exist_ok=True)
    entries = [{"id": token_id, "content": token} for token_id, token in added]
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": entries, **rest}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_templates_merges_and_order_do_not_matter(tmp_path: Path) -> None:
    """Models of one family share a fingerprint, though their files differ."""
    one = write(tmp_path / "one", added=[(3, "<end>")], normalizer=None)
    other = write(
        tmp_path / "other",
        dict(reversed(VOCABULARY.items())),
        added=[(3, "<end>")],
        post_processor={"type": "TemplateProcessing"},
    )
    assert vocabulary_fingerprint(one) == vocabulary_fingerprint(other) is not None


@pytest.mark.parametrize(
    ("vocabulary", "added"),
    [({"a": 0, "b": 2, "ab": 1}, []), ({"a": 0, "b": 1, "c": 2}, []), (VOCABULARY, [(3, "<x>")])],
)
def test_another_token_behind_an_id_shows(tmp_path: Path, vocabulary: Any, added: Any) -> None:
    """Ids that are swapped, stand for another token, or are more."""
    one, other = write(tmp_path / "one"), write(tmp_path / "other", vocabulary, added)
    assert vocabulary_fingerprint(one) != vocabulary_fingerprint(other)


def test_a_list_with_scores_is_a_vocabulary_too(tmp_path: Path) -> None:
    """As Unigram tokenizers write it."""
    one = write(tmp_path / "one", [["a", -1.0], ["b", -2.0], ["ab", -3.0]])
    assert vocabulary_fingerprint(one) == vocabulary_fingerprint(write(tmp_path / "other"))


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    """No file, no JSON, or no vocabulary in it."""
    assert vocabulary_fingerprint(tmp_path) is None
    for text in ("", "[]", '{"model": {}}', '{"model": {"vocab": {"a": []}}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        assert vocabulary_fingerprint(tmp_path) is None


def test_both_models_of_a_config_are_read(tmp_path: Path) -> None:
    """Where the target and the workers' draft model are here, their vocabularies are known."""
    target, draft = write(tmp_path / "target"), write(tmp_path / "draft", {"a": 0})
    workers = {"kinds": ["model"], "draft": {"source": str(draft)}}
    config = ClusterConfig.model_validate(
        {
            "model": {"name": "m", "source": str(target)},
            "drafting": {"split": {"workers": workers}},
        }
    )
    assert gather_facts(config).vocabularies == (
        vocabulary_fingerprint(target),
        vocabulary_fingerprint(draft),
    )
