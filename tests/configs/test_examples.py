"""What we ship works: the example clusters, and the page about the settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs import check, gather_facts, load_config
from configs.describe import configuration_page, describe_schema
from configs.facts import MachineFacts

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_examples() -> None:
    """Laptop, router and cluster."""
    assert {path.stem for path in EXAMPLES} >= {"local", "two_verifiers", "gpu_cluster"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_passes_every_check(path) -> None:
    """On a machine with two cores and 8 GiB, without any weights or secrets."""
    config = load_config(path)
    machine = MachineFacts(memory_bytes=8 << 30, cores=2, avx512=False)
    assert check(config, replace(gather_facts(config), machine=machine), path.name) == []


def test_the_page_about_the_settings_is_up_to_date() -> None:
    """Run `python -m configs.describe > docs/configuration.md` after a change of the schema."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == configuration_page()


def test_every_setting_is_described() -> None:
    """No key without words, and no key twice."""
    settings = describe_schema()
    assert [s.key for s in settings if not s.description or not s.type] == []
    assert len({s.key for s in settings}) == len(settings)


@pytest.mark.parametrize(
    ("key", "type_", "default"),
    [
        ("name", "text (lower-case letters, digits and dashes", '"paceline"'),
        ("model", "section", "required"),
        ("model.adapters[].name", "text", "required"),
        ("model.max_lora_rank", "`1`, `8`, `16`", "16"),
        ("verifiers.kv_cache.prefix_caching", "true or false", "true"),
        ("verifiers.replicas", "whole number (1 to 1024)", "1"),
        ("verifiers.cpus", "number (above 0)", "1"),
        ("drafting.split.workers.kinds", "list of: `prompt_lookup`", '["prompt_lookup"]'),
        ("drafting.colocated.draft.shape.layers", "whole number", "required"),
        ("kv.tiers[].kind", "`dram`, `disk`, `redis`", "required"),
        ("folders.models", "path", '"~/.cache/paceline/models"'),
    ],
)
def test_a_setting_has_its_type_and_default_in_words(key, type_, default) -> None:
    """As the page, the chart and other rooms show them; never this machine's own paths."""
    (setting,) = (s for s in describe_schema() if s.key == key)
    assert setting.type.startswith(type_)
    assert setting.default == default
