"""Makes the chart's values.schema.json, and the table of values in its README.

    python helm/describe.py           writes both
    python helm/describe.py --check   says whether they are up to date

The schema of `cluster` is that of `configs/schema.py`: what `paceline check` refuses as a single
value, Helm refuses by the same words of the same schema.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from configs.schema import ClusterConfig

HELM = Path(__file__).parent
CHART = HELM / "paceline"
SCHEMA_FILE = CHART / "values.schema.json"
README_FILE = CHART / "README.md"
TABLE_BEGINS, TABLE_ENDS = "<!-- values -->", "<!-- end of values -->"


def values_schema() -> dict[str, Any]:
    """The JSON schema of all values of the chart."""
    own = _closed(yaml.safe_load((HELM / "values.schema.yaml").read_text())["properties"])
    cluster = ClusterConfig.model_json_schema()
    definitions = cluster.pop("$defs")
    # Defaults are the application's to fill in, and some depend on who asks.
    for section in definitions.values():
        for setting in section.get("properties", {}).values():
            setting.pop("default", None)
    for setting in cluster["properties"].values():
        setting.pop("default", None)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the paceline chart",
        "type": "object",
        "additionalProperties": False,
        "required": ["cluster"],
        "properties": {"cluster": cluster, **own},
        "$defs": definitions,
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """`properties` where an object whose keys are named has no others."""
    closed = {}
    for name, schema in properties.items():
        schema = dict(schema)
        if "properties" in schema:
            schema |= {"type": "object", "additionalProperties": False}
            schema["properties"] = _closed(schema["properties"])
        if "properties" in schema.get("items", {}):
            items = schema["items"]
            schema["items"] = items | {
                "type": "object",
                "additionalProperties": False,
                "properties": _closed(items["properties"]),
            }
        closed[name] = schema
    return closed


def values_table() -> str:
    """Every value in a Markdown table: key, default, what it is."""
    own = yaml.safe_load((HELM / "values.schema.yaml").read_text())["properties"]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = ["| value | default | what it is |", "|---|---|---|"]
    rows.append("| `cluster` | must be given | The cluster's YAML (docs/configuration.md). |")
    rows += _rows(own, defaults, "")
    return "\n".join(rows)


def _rows(properties: dict[str, Any], defaults: Any, prefix: str) -> list[str]:
    rows = []
    for name, schema in properties.items():
        key, default = f"{prefix}{name}", (defaults or {}).get(name)
        if "properties" in schema:
            rows += _rows(schema["properties"], default, f"{key}.")
            continue
        if name not in (defaults or {}) and name != "global":
            raise SystemExit(f"{key} is missing in values.yaml")
        shown = json.dumps(default, ensure_ascii=False)
        shown = f"`{shown}`" if len(shown) < 60 else "see values.yaml"
        text = " ".join(schema["description"].split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {shown} | {text} |")
        for item, inner in schema.get("items", {}).get("properties", {}).items():
            rows.append(f"| `{key}[].{item}` | | {inner['description']} |")
    return rows


def generated_files() -> dict[Path, str]:
    """What the two files should hold."""
    readme = README_FILE.read_text()
    before, _, rest = readme.partition(TABLE_BEGINS)
    _, _, after = rest.partition(TABLE_ENDS)
    table = f"{before}{TABLE_BEGINS}\n{values_table()}\n{TABLE_ENDS}{after}"
    return {SCHEMA_FILE: json.dumps(values_schema(), indent=1) + "\n", README_FILE: table}


def main() -> None:
    """Writes the files, or with `--check` names those that are not up to date."""
    stale = [file for file, text in generated_files().items() if _text(file) != text]
    if "--check" in sys.argv:
        if stale:
            raise SystemExit(f"run `python helm/describe.py`: {', '.join(map(str, stale))}")
        return
    for file in stale:
        file.write_text(generated_files()[file])


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    main()
