"""Environments that many tests use, made once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.parts import BASE_PYTHON, need


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e2e")


@pytest.fixture(scope="session", autouse=True)
def _template(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One for all processes of the tests."""
    base = tmp_path_factory.getbasetemp()
    parts.template = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "template"


@pytest.fixture(scope="session")
def digits(ground: Path) -> parts.Project:
    """The digits example with its hash-locked NumPy and scikit-learn, captured; its image is in the store."""
    directory = ground / "digits"
    env = {**os.environ, "PYTHON": BASE_PYTHON, "UV": str(parts.COMMAND.with_name("uv"))}
    subprocess.run([parts.ROOT / "lockfiles" / "venv.sh", directory / ".venv", "example"], env=env, cwd=parts.ROOT, check=True)
    (directory / ".venv" / "stamp").unlink()
    python = directory / ".venv" / "bin" / "python"
    made = parts.project(directory, python, ground / "digits-store", "digits")
    made.capture("--seed", "7")
    made.rebuild()
    return made


@pytest.fixture(scope="session")
def captured_small(ground: Path) -> parts.Project:
    directory = ground / "small"
    python = parts.venv(directory / ".venv", "packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0", own_pip=False)
    (site,) = (directory / ".venv" / "lib").glob("python*/site-packages")
    with (site / "mdurl" / "__init__.py").open("a") as file:
        file.write("EDITED = True\n")
    made = parts.project(directory, python, ground / "small-store")
    (directory / "hello.py").write_text("print('hello from', __file__)\nopen('made.txt', 'w').write('made')\n")
    made.capture()
    made.rebuild()
    (ground / "small-kept").mkdir()
    _copy(directory, ground / "small-kept")
    return made


@pytest.fixture(scope="module")
def small(captured_small: parts.Project, ground: Path) -> Iterator[parts.Project]:
    """A venv with three small wheels from the configured index and an edited file, captured; the image is in the store.

    What a module's tests leave in the project, or capture again, is undone after them.
    """
    yield captured_small
    directory = captured_small.directory
    for path in directory.iterdir():
        if path.name in (".venv", "runs"):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    _copy(ground / "small-kept", directory)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source / "repro", target / "repro", symlinks=True)
    shutil.copy2(source / "hello.py", target / "hello.py")


@pytest.fixture(scope="session")
def torch(ground: Path) -> parts.Project:
    """The environment that `make test` makes, with torch for the CPU and matplotlib, and the torch example, captured."""
    python = parts.having("torch", "matplotlib")
    need(python, "no environment with torch and matplotlib: `make test` makes one where pip knows a place with a CPU build")
    assert python is not None
    made = parts.project(ground / "torch", python, ground / "torch-store", "torch")
    made.capture("--seed", "11")
    made.rebuild()
    return made
