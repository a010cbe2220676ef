"""The file that a command starts, and names that are refused before a rebuild."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.runs.start import script
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.schema.errors import CommandMissingError


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train.py --lr 1", "train.py"),
        ("./run.sh x.py", "./run.sh"),
        ("src/fit", "src/fit"),
        ("python train.py", "train.py"),
        ("python3.11 -u -W ignore -X dev -OO train.py other.py", "train.py"),
        (".venv/bin/python train.py", "train.py"),
        ("python -m train x.py", ""),
        ("python -um train x.py", ""),
        ("python -c pass x.py", ""),
        ("python - x.py", ""),
        ("python --version", ""),
        ("bash run.sh", "run.sh"),
        ("bash -c ./run.sh", ""),
        ("torchrun --nproc_per_node 2 train.py --config x.py", "train.py"),
        ("accelerate launch --num_processes 2 train.py", "train.py"),
        ("accelerate launch -m train x.py", ""),
        ("pytest tests/test_x.py", ""),
        ("-m train x.py", ""),
        ("-c pass", ""),
    ],
)
def test_the_script_of_a_command(command: str, expected: str) -> None:
    assert script.script_of(command.split()) == expected


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "run.sh", "src/fit.py", "pack/__init__.py", "pack/deep.py", "pack/fast.cpython-311.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link.py").symlink_to("/somewhere/else.py")
    return tmp_path


def check(project: Path, command: str, here: str = "/code") -> None:
    code = SourceDirectory(project, "", project)
    script.check(command.split(), code, here=Path(here), workspace="/code", others=("/code/data", "/code/.venv"))


@pytest.mark.parametrize(
    ("command", "here", "hint"),
    [
        ("trian.py", "/code", "did you mean train.py?"),
        ("python trian.py", "/code", "did you mean train.py?"),
        ("./rum.sh", "/code", "did you mean run.sh?"),
        ("src/fti.py", "/code", "did you mean src/fit.py?"),
        ("fti.py", "/code/src", "did you mean fit.py?"),
        ("train.py", "/code/src", "did you mean ../train.py?"),
        ("../src/fti.py", "/code/src", "did you mean fit.py?"),
        ("/code/src/fti.py", "/code", "did you mean src/fit.py?"),
        ("python -m pack.deap", "/code", "did you mean pack/deep.py?"),
        ("gone/x.py", "/code", "Paths are relative"),
    ],
)
def test_a_missing_file_is_refused_with_the_nearest_name(project: Path, command: str, here: str, hint: str) -> None:
    with pytest.raises(CommandMissingError) as caught:
        check(project, command, here)
    assert caught.value.hint.startswith(hint)
    assert caught.value.where in command


@pytest.mark.parametrize(
    "command",
    [
        "train.py",
        "run.sh",
        "link.py",
        "data/x.py",
        ".venv/bin/x",
        "/opt/x.py",
        "../x.py",
        "x",
        "python -m pack.deep",
        "python -m pack.fast",
        "python -m pack",
        "python -m numpy.f2py",
        "-m json.tool",
        "pytest x.py",
    ],
)
def test_what_exists_or_may_be_elsewhere_is_not_refused(project: Path, command: str) -> None:
    check(project, command)


def test_captured_files_are_not_looked_up(project: Path) -> None:
    code = SourceDirectory(None, "--frozen", project)
    script.check(["gone.py"], code, here=Path("/code"), workspace="/code", others=())
