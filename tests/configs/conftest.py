"""A small config, a fixed machine, and what the checks say about them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from configs import ClusterConfig, check, parse_config
from configs.facts import Facts, MachineFacts

SMALL = {
    "model": {"name": "m", "source": "org/model"},
    "hardware": {"kind": "cpu"},
    "folders": {"run": "/tmp/p"},
}
MACHINE = MachineFacts(memory_bytes=16 << 30, cores=4, avx512=True)


@pytest.fixture
def make_config() -> Callable[[dict[str, Any]], ClusterConfig]:
    """A small CPU config with dotted keys changed."""

    def make(changes: dict[str, Any]) -> ClusterConfig:
        values: dict[str, Any] = deepcopy(SMALL)
        for key, value in changes.items():
            *sections, last = key.split(".")
            section = values
            for name in sections:
                section = section.setdefault(name, {})
            section[last] = value
        return parse_config(values, "test")

    return make


@pytest.fixture
def judge(make_config) -> Callable[..., list[tuple[str, str]]]:
    """Keys and reasons that one rule, or all of them, find in a changed config."""

    def judge(changes: dict[str, Any], known: dict[str, Any], rule=None) -> list[tuple[str, str]]:
        config = make_config(changes)
        facts = Facts(**{"machine": MACHINE, **known})
        if rule is not None:
            return [tuple(finding) for finding in rule(config, facts)]
        return [(p.key, p.reason) for p in check(config, facts, "test", secrets=True)]

    return judge
