"""A config file is read as written, or everything wrong with it is said in plain words."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import ClusterConfig, ConfigError, load_config, parse_config

MODEL = "model: {name: m, source: org/model}\n"


def problems(path: Path, text: str) -> dict[str, str]:
    """Key and reason of each problem in a file with this text."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert all(problem.file == str(path) for problem in caught.value.problems)
    return {problem.key: problem.reason for problem in caught.value.problems}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's config file goes."""
    return tmp_path / "c.yaml"


def test_the_shortest_config_is_a_model(path) -> None:
    """Everything but the model has a default."""
    path.write_text(MODEL)
    assert load_config(path).model.source == "org/model"


def test_all_problems_are_told_at_once(path) -> None:
    """One run shows a typo, a wrong type, a missing key and a value out of range."""
    found = problems(path, "model: {nam: m, source: 3}\nverifiers: {replicas: 0}\n")
    assert found == {
        "model.nam": "there is no such key; did you mean `name`?",
        "model.source": "must be text, not a whole number; put it in quotes",
        "model.name": "is missing: What clients send as `model`.",
        "verifiers.replicas": "must be at least 1, not 0",
    }


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("verifer: {}", "verifer", "there is no such key; did you mean `verifiers`?"),
        ("verifiers: {kv: 1}", "verifiers.kv", "the keys here are replicas, tensor"),
        ("hardware: {colour: red}", "hardware.colour", "the keys here are kind, gpu_type"),
        ("verifiers: {kv_cache: {blocksize: 1}}", "verifiers.kv_cache.blocksize", "`block_size`?"),
        ("drafting: {split: {workers: {kind: []}}}", "drafting.split.workers.kind", "`kinds`?"),
        ("kv: {tiers: [{sort: dram}]}", "kv.tiers[0].sort", "the keys here are kind, size_gib"),
        ("redis: {password: {evn: A}}", "redis.password.evn", "did you mean `env`?"),
    ],
)
def test_an_unknown_key_is_named_with_its_nearest(path, text, key, reason) -> None:
    """At every depth, with what was meant or what there is."""
    assert reason in problems(path, MODEL + text)[key]


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("verifiers: {replicas: true}", "verifiers.replicas", "a whole number, not true or false"),
        ('verifiers: {replicas: "2"}', "verifiers.replicas", "not text; write it without quotes"),
        ("verifiers: {cpus: many}", "verifiers.cpus", "must be a number, not text"),
        ("verifiers: {eager: 1}", "verifiers.eager", "true or false, not a whole number"),
        ("verifiers: {env: {A: 1}}", "verifiers.env.A", "must be text, not a whole number"),
        ("verifiers: {env: {1: a}}", "verifiers.env[1]", "the key must be text"),
        ("verifiers: {engine_args: []}", "verifiers.engine_args", "a section of keys, not a list"),
        ("verifiers: {cpus: .inf}", "verifiers.cpus", "must be a finite number"),
        ("verifiers:", "verifiers", "not empty; give it a value, or remove the line"),
        ("hardware: gpu", "hardware", "its keys are kind, gpu_type, gpu_memory_gib"),
        ("hardware: {kind: GPU}", "hardware.kind", "one of cpu, gpu; did you mean `gpu`?"),
        ("router: {policy: random}", "router.policy", "must be one of least_loaded, prefix_aware"),
        ("kv: {tiers: {kind: dram}}", "kv.tiers", "must be a list, not a section of keys"),
        ("name: Line_1", "name", "lower-case letters, digits and dashes, a letter first"),
        ("ports: {http: 80}", "ports.http", "must be at least 1024, not 80"),
        (
            "drafting: {split: {workers: {kinds: []}}}",
            "drafting.split.workers.kinds",
            "at least one entry",
        ),
        ("drafting: {split: {workers: {kinds: [x]}}}", "drafting.split.workers.kinds[0]", "one of"),
        ("front_door: {keys: {}}", "front_door.keys", "exactly one of `file` and `env`"),
        ("folders: {run: ~nobody-here/x}", "folders.run", "there is no home folder"),
        ("3: x", "[3]", "the key must be text"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(path, text, key, reason) -> None:
    """What it must be and what it is, without Python's names for either."""
    found = problems(path, MODEL + text)
    assert list(found) == [key]
    assert reason in found[key]
    assert "pydantic" not in found[key] and "Input" not in found[key]


@pytest.mark.parametrize(
    "text",
    [
        "redis: {url: 'redis://:hunter2@host'}",
        "redis: {url: 'redis://host?password=hunter2'}",
        "redis: {password: hunter2}",
        "front_door: {keys: [hunter2]}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(path, text) -> None:
    """A password that stands where it must not is not copied into a log as well."""
    assert "hunter2" not in str(problems(path, MODEL + text))


def test_no_file_is_told(tmp_path) -> None:
    """A missing file, a folder and bytes that are no text each have a sentence."""
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    reasons = {}
    for name in ("missing.yaml", ".", "latin.yaml"):
        with pytest.raises(ConfigError) as caught:
            load_config(tmp_path / name)
        reasons[name] = caught.value.problems[0].reason
    assert reasons == {
        "missing.yaml": "there is no such file",
        ".": "cannot be read: Is a directory",
        "latin.yaml": "is not UTF-8 text (byte 9)",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be a section of keys, not empty"),
        ("- a\n- b\n", "must be a section of keys, not a list"),
        ("name: [a\n", "line 2, column 1: not valid YAML: expected ',' or ']'"),
        ("name: a\n\tmodel: b\n", "line 2, column 1: not valid YAML: found character '\\t'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: not valid YAML: but found another document"),
        ("a: !!python/object:os.system x\n", "line 1, column 4: not valid YAML"),
        ("a: !!int x\n", "line 1, column 4: not valid YAML: this is no valid int"),
        ("a: \x01\n", "line 1, column 4: not valid YAML: a character that cannot be printed"),
        ("a: &b [*b]\n", "line 1, column 4: not valid YAML: the anchor contains itself"),
        ("[" * 5000, "sections are nested too deeply"),
    ],
)
def test_what_is_no_config_is_told_with_its_place(path, text, reason) -> None:
    """YAML errors have a line and a column, and no error is Python's own."""
    assert problems(path, text)[""].startswith(reason)


def test_a_key_that_is_given_twice_is_refused(path) -> None:
    """YAML would silently take the last one."""
    found = problems(
        path, MODEL + "verifiers:\n  seed: 1\n  seed: 2\nmodel: {name: n, source: o}\n"
    )
    assert found == {
        "verifiers.seed": "is given twice (lines 3 and 4); keep one",
        "model": "is given twice (lines 1 and 5); keep one",
    }


def test_an_anchor_may_be_used_again(path) -> None:
    """Anchors and merge keys work; what a merge overrides is not given twice."""
    path.write_text(
        "model: {name: m, source: org/m, shape: &s {attention_heads: 8, kv_heads: 8, layers: 2,"
        " hidden_size: 64, vocab_size: 99, max_context: 64, parameters_billions: 0.1}}\n"
        "drafting: {colocated: {method: draft_model, draft: {source: org/d,"
        " shape: {<<: *s, layers: 1}}}}\n"
    )
    draft = load_config(path).drafting.colocated.draft
    assert (draft.shape.layers, draft.shape.kv_heads) == (1, 8)


def test_relative_paths_start_at_the_file(path, monkeypatch) -> None:
    """A config means the same from every folder; `~` is whoever runs it."""
    monkeypatch.setenv("HOME", "/home/rider")
    path.write_text(
        "model: {name: m, source: ./weights, chat_template: ../t.jinja,"
        " adapters: [{name: a, source: ~/a}, {name: b, source: org/b}]}\n"
        "front_door: {keys: {file: keys}}\n"
        "kv: {tiers: [{kind: disk, size_gib: 1, path: /kv}]}\n"
    )
    config, folder = load_config(path), path.parent
    assert config.model.source == str(folder / "weights")
    assert config.model.chat_template == folder.parent / "t.jinja"
    assert [a.source for a in config.model.adapters] == ["/home/rider/a", "org/b"]
    assert config.front_door.keys.file == folder / "keys"
    assert config.kv.tiers[0].path == Path("/kv")
    assert config.folders.models == Path("/home/rider/.cache/paceline/models")


def test_a_config_survives_its_way_as_json(path) -> None:
    """What `serve deploy` and Ray hand over is the same config."""
    path.write_text(MODEL + "kv: {tiers: [{kind: dram, size_gib: 2}]}\n")
    config = load_config(path)
    assert parse_config(config.model_dump(mode="json"), "args") == config
    assert ClusterConfig.model_validate_json(config.model_dump_json()) == config


def test_a_builtin_name_cannot_leave_its_folder(path) -> None:
    """`builtin:` is followed by a name."""
    found = problems(path, "model: {name: m, source: 'builtin:../../etc'}\n")
    assert "not a path" in found["model.source"]


KEYS = st.sampled_from([*ClusterConfig.model_fields, "kind", "tiers", "engine_args", "é", "\ud800"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)
# What YAML gives a meaning to.
SNIPPETS = st.sampled_from(
    ["model:", "name: m", "{", "}", "[", "]", "&a", "*a", "<<:", "- ", ": ", "? ", "!!", "int",
     "set", "binary", "bool", "float", "timestamp", "omap", "pairs", " ", "\n", "\n  ", "'", '"',
     "|", ">", "%YAML", "---", "...", "#", "\t", "0x", "1e9", "1:30", ".inf", "~", "2024-01-01",
     "\\ud800", "\0"]
)  # fmt: skip


@settings(deadline=None)  # machines are slow at times, and speed is not the promise
@given(text=st.text() | st.lists(SNIPPETS | st.text(max_size=2)).map("".join))
def test_no_text_breaks_the_loader(tmp_path_factory, text) -> None:
    """Whatever stands in the file, it is a config or a ConfigError that can be printed."""
    path = tmp_path_factory.mktemp("any") / "c.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        load_config(path)
    except ConfigError as error:
        assert error.problems and str(error).encode("utf-8")


@settings(deadline=None)  # machines are slow at times, and speed is not the promise
@given(values=st.dictionaries(KEYS, VALUES, max_size=4))
def test_no_values_break_the_loader(tmp_path_factory, values) -> None:
    """Valid YAML of any content is a config or a ConfigError, too."""
    path = tmp_path_factory.mktemp("any") / "c.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=False), encoding="utf-8")
    try:
        load_config(path)
    except ConfigError as error:
        assert error.problems and str(error).encode("utf-8")
