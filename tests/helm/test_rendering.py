"""Helm 3 and 4 take the chart and make the same of it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, Object, render, run_helm, values_files
from chart_tools import helm

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("version", ["helm3", "helm4"])
def test_helm_finds_nothing_to_say(version: str) -> None:
    """`helm lint --strict`, with every file of values."""
    for file in values_files():
        run_helm(helm(version), "lint", "--strict", str(CHART), "--values", str(file))


def test_both_helms_make_the_same(objects: list[Object], values_file: Path) -> None:
    """Object by object, random secrets apart."""
    ours = {identity(o): o for o in without_random(objects)}
    theirs = {identity(o): o for o in without_random(render(helm("helm3"), values_file))}
    assert ours == theirs


@pytest.mark.parametrize("name", ["smallest", "everything"])
def test_what_is_rendered_changes_on_purpose_only(name: str, rendered: Any) -> None:
    """tests/helm/golden holds what was rendered before, renewed by
    `PYTHONPATH=tests/support python tests/helm/renew_golden.py`.

    Compared as objects: order and comments of the text are free.
    """
    file = GOLDEN / f"{name}.yaml"
    found = without_pages(without_random(rendered(CHART / "ci" / f"{name}-values.yaml")))
    expected = list(yaml.load_all(file.read_text(), yaml.CSafeLoader))
    assert {identity(o): o for o in found} == {identity(o): o for o in expected}


def test_schema_and_readme_are_up_to_date() -> None:
    """`python helm/describe.py` has nothing to change."""
    done = subprocess.run([sys.executable, "helm/describe.py", "--check"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def identity(found: Object) -> tuple[str, str]:
    """What tells objects of a release apart."""
    return found["kind"], found["metadata"]["name"]


def without_random(objects: list[Object]) -> list[Object]:
    """`objects` with the values of secrets left out."""
    return [
        found | {"data": sorted(found["data"])} if found["kind"] == "Secret" else found
        for found in objects
    ]


def without_pages(objects: list[Object]) -> list[Object]:
    """`objects` without Grafana's pages, which test_monitoring.py judges."""
    return [found for found in objects if "-dashboard-" not in found["metadata"]["name"]]
