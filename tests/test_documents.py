"""What the documents list is what the code has."""

import re
from pathlib import Path

from replicas.verifier.request_fields import FIELDS
from replicas.verifier.routes import ROUTES

ROOMS = ("cluster", "configs", "kvstore", "replicas", "router")


def code() -> str:
    """All of our source in one string."""
    return "\n".join(file.read_text() for room in ROOMS for file in Path(room).rglob("*.py"))


def test_every_metric_is_listed_once_with_its_unit() -> None:
    """Names in the code and rows of docs/metrics.md are the same set."""
    made = set(re.findall(r'(?:Counter|TotalCounter|Gauge|Histogram)\(\s*"(paceline_\w+)"', code()))
    rows = re.findall(
        r"^\| `(paceline_\w+)` \| \w+ \| [^|]+ \|", Path("docs/metrics.md").read_text(), re.M
    )
    assert made
    assert sorted(rows) == sorted(made)


def test_every_route_is_listed() -> None:
    """Rows of docs/api.md and the front door's table are the same set."""
    text = Path("docs/api.md").read_text()
    rows = re.findall(r"^\| `(GET|POST) (/\S*)` \|", text, re.M)
    assert sorted(rows) == sorted((route.method, route.path) for route in ROUTES)


def test_every_parameter_is_listed() -> None:
    """docs/api.md names each field of chat and completions."""
    named = set(re.findall(r"`(\w+)`", Path("docs/api.md").read_text()))
    for kind in ("chat", "completion"):
        assert set(FIELDS[kind]) <= named, set(FIELDS[kind]) - named


def test_every_file_of_the_map_exists() -> None:
    """ARCHITECTURE.md names no file that is gone."""
    text = Path("ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert Path(name).exists(), name


def test_every_link_between_documents_leads_somewhere() -> None:
    """Relative links of the README and the docs exist."""
    chart = Path("helm/paceline/README.md")
    for file in [*Path().glob("*.md"), *Path("docs").glob("*.md"), chart]:
        for target in re.findall(r"\]\(((?!http)[^)#]+)", file.read_text()):
            assert (file.parent / target).exists(), f"{file}: {target}"
