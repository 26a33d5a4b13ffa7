"""Writes what the chart renders now to tests/helm/golden; read the difference before committing.

PYTHONPATH=tests/support python tests/helm/renew_golden.py
"""

from pathlib import Path

import yaml
from chart import CHART, render
from chart_tools import helm

if __name__ == "__main__":
    for name in ("smallest", "everything"):
        objects = render(helm("helm4"), CHART / "ci" / f"{name}-values.yaml")
        objects = [found for found in objects if "-dashboard-" not in found["metadata"]["name"]]
        for found in objects:
            if found["kind"] == "Secret":
                found["data"] = sorted(found["data"])
        file = Path(__file__).parent / "golden" / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(objects))
