"""The image: pinned, not root, and made by steps that work from nothing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD_TIMEOUT_S = 560


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: keyword and the rest, lines joined."""
    text = re.sub(r"^\s*#.*\n", "", Path("Dockerfile").read_text(), flags=re.M)
    text = text.replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def test_the_image_is_pinned_and_not_root() -> None:
    """One version of the base, a user by number, and nothing copied but what is ignored not."""
    steps = instructions()
    version = next(rest for word, rest in steps if word == "ARG" and rest.startswith("PYTHON="))
    assert re.fullmatch(r"PYTHON=\d+\.\d+\.\d+-slim-\w+", version)
    bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert set(bases) == {"python:${PYTHON}"}
    users = [rest for word, rest in steps if word == "USER"]
    assert users == ["1000"]
    let_in = {line[1:] for line in Path(".dockerignore").read_text().split() if line[0] == "!"}
    assert set(copied()) == let_in


def copied() -> list[str]:
    """What the build takes from the repository."""
    lines = [rest.split() for word, rest in instructions() if word == "COPY"]
    return [source for words in lines if "--from=build" not in words for source in words[:-1]]


@pytest.mark.line
@pytest.mark.timeout(BUILD_TIMEOUT_S + 30)
def test_the_steps_of_the_cpu_image_work_in_a_clean_folder(tmp_path: Path) -> None:
    """What is copied, and then the step that installs, as written; the program works after it."""
    folder = tmp_path / "image"
    folder.mkdir()
    for source in copied():
        copy = shutil.copytree if Path(source).is_dir() else shutil.copy
        copy(source, folder / source)
    install = next(rest for word, rest in instructions() if word == "RUN" and "VARIANT" in rest)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("VIRTUAL_ENV", "UV_"))}
    environment |= {"VARIANT": "cpu", "TORCH_CPU_INDEX": ""}
    install = install.replace("UV_NO_CACHE=1", "")  # no image: its cache need not be small
    done = subprocess.run(
        ["sh", "-ec", install],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(
        [folder / ".venv/bin/paceline", "check", folder / "configs/local.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert "possible" in checked.stdout, checked.stderr
    shutil.rmtree(folder)
