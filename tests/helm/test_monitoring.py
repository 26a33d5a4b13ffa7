"""Alerts and dashboards ask for metrics that exist, in queries that Prometheus takes."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, Object, one
from chart_tools import promtool

EVERYTHING = CHART / "ci" / "everything-values.yaml"
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@pytest.fixture
def objects(rendered: Any) -> list[Object]:
    """A release with everything."""
    found: list[Object] = rendered(EVERYTHING)
    return found


# Labels of every metric: Ray's, and those that the PodMonitor puts on.
EVERYWHERE = {"release", "component", "deployment", "application", "replica", "le"}


@lru_cache
def listed() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of each of our metrics, by docs/metrics.md."""
    text = Path("docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(paceline_\w+)` \| (\w+) \| [^|]+ \|([^|]*)\|", text, re.M)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def made_in_code() -> dict[str, tuple[str, frozenset[str]]]:
    """The same, by the calls that make them."""
    found = {}
    kinds = {"Counter": "counter", "TotalCounter": "counter"}
    kinds |= {"Gauge": "gauge", "Histogram": "histogram"}
    for room in ("cluster", "configs", "kvstore", "replicas", "router"):
        for file in Path(room).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                name = call.args[0]
                maker = getattr(call.func, "id", getattr(call.func, "attr", ""))
                if maker in kinds and isinstance(name, ast.Constant):
                    told = [word.value for word in call.keywords if word.arg == "tag_keys"]
                    # `TotalCounter` and Prometheus' own take labels after name and description.
                    told += call.args[2:]
                    words = [word for tags in told for word in ast.walk(tags)]
                    labels = frozenset(w.value for w in words if isinstance(w, ast.Constant))
                    found[name.value] = (kinds[maker], labels)
    return found


@lru_cache
def known_metrics() -> frozenset[str]:
    """Names as Prometheus sees them: ours from docs/metrics.md, Serve's from its source."""
    rows = [(name, kind) for name, (kind, _) in listed().items()]
    spec = find_spec("ray.serve")
    assert spec is not None and spec.submodule_search_locations
    kinds = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}
    for file in Path(spec.submodule_search_locations[0]).rglob("*.py"):
        for kind, name in re.findall(
            r'metrics\.(Counter|Gauge|Histogram)\(\s*(?:name=)?"(serve_\w+)"', file.read_text()
        ):
            rows.append((name, kinds[kind]))
    names = set()
    for name, kind in rows:
        if kind == "histogram":
            names |= {f"ray_{name}{part}" for part in HISTOGRAM_PARTS}
        elif kind == "counter":
            names.add(f"ray_{name.removesuffix('_total')}_total")
        else:
            names.add(f"ray_{name}")
    return frozenset(names)


def test_the_list_of_metrics_says_what_the_code_makes() -> None:
    """Kind and labels of each."""
    made = made_in_code()
    assert len(made) > 50
    assert made == listed()


def foreign_labels(query: str) -> set[str]:
    """Labels that a query selects or groups by, and one of its own metrics does not have."""
    wrong = set()
    parts = re.findall(r"(?:by|on|ignoring) ?\(([^)]*)\)", query)
    grouped = {label.strip() for part in parts for label in part.split(",")}
    for name, selected in re.findall(r"\b(ray_paceline_\w+)(?:\{([^}]*)\})?", query):
        own = name.removeprefix("ray_")
        for part in HISTOGRAM_PARTS:
            own = own if own in listed() else own.removesuffix(part)
        labels = listed()[own][1] | EVERYWHERE
        asked = grouped | set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selected))
        wrong |= {f"{label} of {name}" for label in asked - labels}
    return wrong


def metrics_in(query: str) -> set[str]:
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:ray|haproxy|vllm|redis)_\w+", query))


def dashboards(objects: list[Object]) -> Iterator[tuple[str, Any]]:
    """Each Grafana page with its name."""
    for found in objects:
        if "-dashboard-" in found["metadata"]["name"]:
            for text in found["data"].values():
                yield found["metadata"]["name"], json.loads(text)


def rules(objects: list[Object]) -> list[Object]:
    """The alerts."""
    found: list[Object] = one(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    return found


def test_prometheus_takes_the_rules(objects: list[Object], tmp_path: Path) -> None:
    """promtool, on what is rendered."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(one(objects, "PrometheusRule")["spec"]))
    done = subprocess.run([promtool(), "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{len(rules(objects))} rules found" in done.stdout


def test_alerts_name_metrics_that_exist(objects: list[Object]) -> None:
    """And say what to do, and how bad it is."""
    for rule in rules(objects)[:-1]:  # the last one is the values' own
        assert metrics_in(rule["expr"])
        assert metrics_in(rule["expr"]) <= known_metrics()
        assert not foreign_labels(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "@" not in json.dumps(rule)


def test_prometheus_takes_every_query_of_a_dashboard(objects: list[Object], tmp_path: Path) -> None:
    """As if each were a rule."""
    queries = [
        target["expr"].replace("$release", "pl")
        for _, page in dashboards(objects)
        for panel in page["panels"]
        for target in panel["targets"]
    ]
    recorded = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run([promtool(), "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_dashboards_name_metrics_that_exist(objects: list[Object]) -> None:
    """Five pages, each with panels; every query is of one release."""
    pages = dict(dashboards(objects))
    subjects = {name.rpartition("-")[2] for name in pages}
    assert subjects == {"requests", "speculation", "routing", "cache", "scaling"}
    for page in pages.values():
        ids = [panel["id"] for panel in page["panels"]]
        assert ids and len(ids) == len(set(ids))
        for panel in page["panels"]:
            for target in panel["targets"]:
                named = metrics_in(target["expr"])
                assert named and named <= known_metrics(), named - known_metrics()
                assert not foreign_labels(target["expr"])
                assert target["expr"].count('{release="$release"') == len(
                    re.findall(r"\bray_\w+\{", target["expr"])
                )


def test_a_label_that_is_not_there_would_be_seen() -> None:
    """The judge of labels itself works."""
    assert not foreign_labels("sum by (le, class) (rate(ray_paceline_ttft_seconds_bucket[5m]))")
    assert foreign_labels('sum by (tenant) (ray_paceline_requests_total{release="r"})') == {
        "tenant of ray_paceline_requests_total"
    }
    assert foreign_labels('ray_paceline_requests_in_flight{class="batch"}')


def test_requests_and_latencies_are_shown_by_class(objects: list[Object]) -> None:
    """How many, how soon and how long, each on its panel."""
    page = next(page for name, page in dashboards(objects) if name.endswith("requests"))
    by_class = {
        name
        for panel in page["panels"]
        for target in panel["targets"]
        if re.search(r"by \([^)]*\bclass\b", target["expr"])
        for name in metrics_in(target["expr"])
    }
    assert by_class == {
        "ray_paceline_requests_total",
        "ray_paceline_ttft_seconds_bucket",
        "ray_paceline_request_duration_seconds_bucket",
    }


def test_the_label_that_queries_ask_for_is_put_on(objects: list[Object]) -> None:
    """The PodMonitor names the release on every metric."""
    for endpoint in one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]:
        assert "release" in {rule["targetLabel"] for rule in endpoint["relabelings"]}
