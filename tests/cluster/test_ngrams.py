"""What an operator does to the fleet's n-grams, over a real Redis and a real tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import CliRunner

from cluster.cli import app
from cluster.errors import ClusterError
from cluster.ngrams import FleetNgrams
from configs.schema import ClusterConfig
from kvstore.corpora import EVERYBODY, MAX_CORPORA, list_corpora, read_corpus
from kvstore.errors import CorpusRefused, InvalidRecord
from kvstore.fingerprint import tokenizer_fingerprint
from kvstore.keys import parse_keys, sharing_domain
from kvstore.ngram_records import NgramKeys

KEYS = "ada key-of-ada\nbob key-of-bob\n"
WORDS = {word: number for number, word in enumerate(["[UNK]", *"abcdefgh"])}


@pytest.fixture
def config(tmp_path: Path, redis_server: RedisServer) -> dict[str, Any]:
    """A cluster `one` on another machine, with keys, whose tokenizer knows eight words."""
    model = tmp_path / "model"
    model.mkdir()
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(model / "tokenizer.json"))
    assert redis_server.settings.password is not None
    for name, text in (("password", redis_server.settings.password), ("keys", KEYS)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    workers = {"kinds": ["ngram_index"], "ngram": {"corpus_mib": 1}}
    return {
        "name": "one",
        "model": {"name": "m", "source": str(model)},
        "drafting": {"split": {"workers": workers}},
        "front_door": {"keys": {"file": str(tmp_path / "keys")}},
        "redis": {
            "url": redis_server.settings.url,
            "password": {"file": str(tmp_path / "password")},
        },
    }


@pytest.fixture
def ngrams(config: dict[str, Any]) -> FleetNgrams:
    return FleetNgrams(ClusterConfig.model_validate(config))


def keys_of(config: dict[str, Any]) -> NgramKeys:
    return NgramKeys("one", tokenizer_fingerprint(Path(config["model"]["source"])))


def text(folder: Path, content: str) -> Path:
    file = folder / "text.txt"
    file.write_text(content, encoding="utf-8")
    return file


def test_a_corpus_is_the_models_tokens_of_a_file(
    ngrams: FleetNgrams, config: dict[str, Any], tmp_path: Path, redis_server: RedisServer
) -> None:
    """Everybody's, or a tenant's domain as the verifiers derive it; a name again replaces."""
    ngrams.add(text(tmp_path, "a b c d"), "mine", "ada")
    ngrams.add(text(tmp_path, "h g f e d"), "all", None)
    ngrams.add(text(tmp_path, "c b a"), "mine", "ada")
    domain = bytes.fromhex(sharing_domain("ada", parse_keys(KEYS).derived_secret()))
    listed = {corpus.name: corpus for corpus in ngrams.list()}
    assert (listed["all"].domain, listed["all"].tokens) == (EVERYBODY, 5)
    assert (listed["mine"].domain, listed["mine"].tenant) == (domain, "ada")
    with redis_server.client() as client:
        (piece,) = read_corpus(client, keys_of(config), listed["mine"], vocab_size=9)
        assert piece.tolist() == [WORDS[word] for word in "cba"]
        assert len(list(client.scan_iter("paceline:one:corpus:*"))) == 2, "nothing is left behind"
        with pytest.raises(InvalidRecord, match="vocabulary"):
            list(read_corpus(client, keys_of(config), listed["mine"], vocab_size=2))
    assert ngrams.remove("mine")
    assert not ngrams.remove("mine")
    assert [corpus.name for corpus in ngrams.list()] == ["all"]


def test_corpora_have_limits(ngrams: FleetNgrams, tmp_path: Path) -> None:
    """All together they fit into what the config gives every worker; refusals name the key."""
    ngrams.add(text(tmp_path, "a b c " * 7_000), "one", None)
    with pytest.raises(CorpusRefused, match="corpus_mib"):
        ngrams.add(text(tmp_path, "a b c " * 14_000), "two", None)
    with pytest.raises(CorpusRefused, match="2 tokens"):
        ngrams.add(text(tmp_path, "a b"), "two", None)
    ngrams.add(text(tmp_path, "a b c " * 14_000), "one", None)
    with pytest.raises(CorpusRefused, match="name"):
        ngrams.add(text(tmp_path, "a b c"), "x" * 1_000, None)


def test_there_are_only_so_many_corpora(
    ngrams: FleetNgrams, config: dict[str, Any], tmp_path: Path, redis_server: RedisServer
) -> None:
    """And entries that are none are left out of the list."""
    file = text(tmp_path, "a b c")
    for number in range(MAX_CORPORA):
        ngrams.add(file, str(number), None)
    with pytest.raises(CorpusRefused, match="already"):
        ngrams.add(file, "one more", None)
    with redis_server.client() as client:
        client.hset(keys_of(config).corpora, "noise", b"noise")
        assert len(list_corpora(client, keys_of(config))) == MAX_CORPORA


def test_a_file_that_is_no_text_is_refused(ngrams: FleetNgrams, tmp_path: Path) -> None:
    """By its name, with the reason."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match=r"binary is not UTF-8"):
        ngrams.add(tmp_path / "binary", "x", None)
    with pytest.raises(ClusterError, match=r"nothing can't be read"):
        ngrams.add(tmp_path / "nothing", "x", None)


def test_a_tenant_is_forgotten_with_its_corpora(
    ngrams: FleetNgrams, config: dict[str, Any], tmp_path: Path, redis_server: RedisServer
) -> None:
    """Others' stay; the workers find the record."""
    ngrams.add(text(tmp_path, "a b c"), "ada's", "ada")
    ngrams.add(text(tmp_path, "a b c"), "bob's", "bob")
    assert ngrams.forget("ada") == (0, 1)
    assert [corpus.name for corpus in ngrams.list()] == ["bob's"]
    with redis_server.client() as client:
        (domain,) = client.hgetall(keys_of(config).forgotten)
        assert domain == bytes.fromhex(sharing_domain("ada", parse_keys(KEYS).derived_secret()))
        assert client.xlen(keys_of(config).stream) == 1


def test_where_there_are_no_tenants_none_is_forgotten(config: dict[str, Any]) -> None:
    """A name that would match nothing is an error, and all of one domain goes by the empty one."""
    keyless = ClusterConfig.model_validate({**config, "front_door": {}})
    with pytest.raises(ClusterError, match="no tenants"):
        FleetNgrams(keyless).forget("ada")
    assert FleetNgrams(keyless).forget("") == (0, 0)
    config["drafting"]["split"]["workers"]["ngram"]["sharing"] = "cluster"
    with pytest.raises(ClusterError, match="sharing: cluster"):
        FleetNgrams(ClusterConfig.model_validate(config)).forget("ada")


def test_a_cluster_without_the_index_says_so(config: dict[str, Any]) -> None:
    """With the key to write."""
    config["drafting"]["split"]["workers"]["kinds"] = ["prompt_lookup"]
    with pytest.raises(ClusterError, match=r"drafting\.split\.workers\.kinds"):
        FleetNgrams(ClusterConfig.model_validate(config))


def test_the_command_does_it_all(config: dict[str, Any], tmp_path: Path) -> None:
    """By a YAML file, for a cluster that was not started here."""
    import yaml

    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump(config))
    which, runner = ["--cluster", str(file)], CliRunner()

    def says(*words: str) -> str:
        result = runner.invoke(app, [*words, *which])
        assert result.exit_code == 0, result.output
        return result.output

    added = says("corpus", "add", str(text(tmp_path, "a b c")), "--tenant", "ada")
    assert added == "text.txt: 3 tokens for ada\n"
    assert says("corpus", "list") == added
    assert "removed" in says("corpus", "remove", "text.txt")
    assert says("corpus", "list") == ""
    assert "0 entries" in says("forget", "ada")
    assert isinstance(
        runner.invoke(app, ["corpus", "remove", "nothing", *which]).exception, ClusterError
    )
