"""Projects in places that few machines have: memory file systems, names in another encoding, an image of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.parts import BASE_PYTHON, need


@pytest.fixture
def private_memory() -> Iterator[Path]:
    """A directory of the memory file system that only this user can enter."""
    need(os.access("/dev/shm", os.W_OK), "a writable /dev/shm")
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


def test_a_project_in_a_private_directory_of_dev_shm_runs(private_memory: Path, tmp_path: Path) -> None:
    directory = private_memory / "project"
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), tmp_path / "store")
    (directory / "work.py").write_text("open('out.txt', 'w').write('made')\n")
    project.capture()
    assert "is not bundled" not in project.run("show").out
    project.run("exec", "work.py")
    project.run("verify")


@pytest.mark.parametrize("where", ["project", "environment"])
def test_a_path_that_is_not_utf8_is_refused_by_name(tmp_path: Path, where: str) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system refuses the name")
    directory = odd / "project" if where == "project" else tmp_path / "project"
    python = parts.venv(tmp_path / "made", own_pip=False)
    prefix = (tmp_path / "made").rename((odd if where == "environment" else tmp_path) / ".venv")  # venv refuses to make it there
    project = parts.project(directory, python, tmp_path / "store")
    (directory / "work.py").write_text("")
    done = project.run("capture", "--python", prefix / "bin/python", code=None)
    assert done.code in (2, 6)
    assert "caf" in done.err
    assert "Traceback" not in done.err
    assert done.err.count("-> ") == 1, "what to do"
    assert not (directory / "repro").exists()


def test_a_utf8_path_is_the_same_in_every_locale(tmp_path: Path) -> None:
    directory = tmp_path / "pröj é"
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), tmp_path / "store")
    (directory / "work.py").write_text("import os\nprint(os.fsencode(os.getcwd()))\n")
    for encoding in ({"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        project.capture(env=encoding)
        spec = json.loads((directory / "repro/spec.json").read_text())
        assert spec["identity"]["layout"]["prefix"] == f"{directory}/.venv"
        assert project.run("exec", "work.py", env=encoding).out == f"{os.fsencode(directory)!r}\n"


def test_environments_are_made_and_captured_inside_an_image(tmp_path: Path) -> None:
    """The image has what Debian's `python -m venv` and the package database need."""
    need(os.geteuid() == 0, "root, who reaches the engine")
    need(Path("/usr/share/python-wheels").is_dir(), "Debian's ensurepip: apt-get install python3-venv")
    need(Path("/var/lib/dpkg/info").is_dir(), "a dpkg database")
    directory = tmp_path / "project"
    project = parts.project(
        directory, parts.venv(directory / ".venv", python="/usr/bin/python3", own_pip=False), tmp_path / "store"
    )
    (directory / "work.py").write_text("")
    project.capture()
    assert project.run("exec", "sh", "-c", "python -m venv /tmp/made && /tmp/made/bin/python -m pip --version").out.startswith(
        "pip "
    )
    tool = Path(sys.prefix)
    mounts = [f"--volume={path}:{path}:ro" for path in {parts.ROOT, tool, Path(BASE_PYTHON).parents[1]} if path != Path("/usr")]
    with parts.in_docker(project) as image:
        project.rebuild("--output", "docker:")
        inside = subprocess.run(
            ["docker", "run", "--rm", "--network=none", *mounts, f"--volume={directory}:/inside", "--workdir=/inside",
             "--env=REPRO_ENV_STORE=/tmp/store", "--env=PIP_NO_INDEX=1", image, parts.COMMAND, "capture", "--json", "--output", "/inside/inside"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert inside.returncode == 0, inside.stderr
    outer, inner = (json.loads((directory / name / "spec.json").read_text()) for name in ("repro", "inside"))
    assert inner["observed"]["system_packages"] == outer["observed"]["system_packages"]


def test_scripts_of_a_moved_environment_are_named(tmp_path: Path) -> None:
    """Their first lines keep the old path, so they do not start on the host either."""
    directory = tmp_path / "moved"
    python = parts.venv(tmp_path / "made/.venv", own_pip=False)
    script = python.with_name("tool")
    script.write_text(f"#!{python}\nprint('hi')\n")
    script.chmod(0o755)
    (tmp_path / "made").rename(directory)
    project = parts.project(directory, directory / ".venv/bin/python", tmp_path / "store")
    project.capture()
    (line,) = (line for line in project.run("show").out.splitlines() if "bin/tool" in line and "first line" in line)
    assert f"names {python}, which exists neither here nor in a run" in line
    (directory / "work.py").write_text("import subprocess\nsubprocess.run(['tool'], check=True)\n")
    assert "tool is in the environment, but what its first line names is not" in project.run("exec", "work.py", code=1).err
