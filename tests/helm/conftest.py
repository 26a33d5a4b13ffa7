"""The chart, rendered once for each file of values and each Helm."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from chart import Object, render, values_files
from chart_tools import helm

Rendered = Callable[[Path], list[Object]]


@pytest.fixture(scope="session")
def rendered() -> Rendered:
    """Renders a file of values with Helm 4; each only once."""
    return lru_cache(lambda file: render(helm("helm4"), file))


@pytest.fixture(params=values_files(), ids=lambda file: str(file.relative_to(file.parents[1])))
def values_file(request: pytest.FixtureRequest) -> Path:
    """Each file of values that is shipped."""
    file: Path = request.param
    return file


@pytest.fixture
def objects(rendered: Rendered, values_file: Path) -> list[Object]:
    """The objects of each file of values."""
    return rendered(values_file)


@pytest.fixture
def with_values(tmp_path: Path) -> Callable[[Object], list[Object]]:
    """Renders values that a test makes up."""

    def render_values(values: Object) -> list[Object]:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return render(helm("helm4"), file)

    return render_values
