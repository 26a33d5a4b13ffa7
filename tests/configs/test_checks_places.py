"""Each rule about ports, folders and secrets refuses what cannot work and lets pass what can."""

from pathlib import Path

import pytest

from configs.checks import places
from configs.checks.places import (
    password_has_a_server,
    paths_exist,
    ports_are_apart,
    router_sees_whose_request_it_is,
    run_folder_fits_sockets,
)

ELSEWHERE = {"redis.url": "redis://elsewhere:6379"}
KEYED = {"router.policy": "prefix_aware", "front_door.keys": {"env": "KEYS"}}
MISSING = {"missing_paths": (("model.chat_template", Path("/no.jinja")),)}

CASES = [
    (
        ports_are_apart,
        {"ports.redis": 8000},
        "ports.redis",
        "8000 is ports.http already",
        {"ports.redis": 8001},
        {},
    ),
    (
        ports_are_apart,
        {"ports.http": 30500},
        "ports.http",
        "in the replicas' range, 30000 to 31000",
        {"ports.http": 31001},
        {},
    ),
    (
        ports_are_apart,
        {"ports.replicas_to": 29999},
        "ports.replicas_to",
        "raise it to 30000 or more",
        {"ports.replicas_to": 30000},
        {},
    ),
    (
        ports_are_apart,
        {"ports.replicas_to": 30001, "verifiers.replicas": 3},
        "ports.replicas_to",
        "too few ports for verifiers.replicas 3; raise it to 30002 or more",
        {"ports.replicas_to": 30002, "verifiers.replicas": 3, "ports.dashboard": None},
        {},
    ),
    (
        router_sees_whose_request_it_is,
        {**KEYED, "router.shown_header": "x-session-id"},
        "router.shown_header",
        "use `authorization` or `x-api-key`",
        {**KEYED, "router.shown_header": "x-api-key"},
        {},
    ),
    (
        run_folder_fits_sockets,
        {"folders.run": "/var/lib/a-rather-long/place-for-it"},
        "folders.run",
        "use a shorter folder",
        {"folders.run": "/var/lib/short"},
        {},
    ),
    (
        run_folder_fits_sockets,
        {"name": "a-name-that-is-longer-than-is-useful"},
        "folders.run",
        "or a shorter name",
        {"name": "short"},
        {},
    ),
    (
        password_has_a_server,
        {"redis.password": {"env": "P"}},
        "redis.password",
        "there is no redis.url",
        {**ELSEWHERE, "redis.password": {"env": "P"}},
        {},
    ),
    (
        paths_exist,
        {},
        "model.chat_template",
        "there is nothing at /no.jinja; correct the path",
        ELSEWHERE,
        MISSING,
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_rule_names_the_key_and_the_remedy(judge, rule, wrong, key, says, right, known) -> None:
    """A rule refuses the wrong config by its key, in words that say what to do."""
    found = dict(judge(wrong, known, rule))
    assert says in found.get(key, "nothing found")


@pytest.mark.parametrize(("rule", "wrong", "key", "says", "right", "known"), CASES)
def test_a_config_that_works_passes_all_rules(judge, rule, wrong, key, says, right, known) -> None:
    """With the remedy taken, no rule of any file has anything to say."""
    assert judge(right, known) == []


def test_every_rule_has_a_case() -> None:
    """No rule of this file goes untested."""
    assert {case[0] for case in CASES} == set(places.RULES)
