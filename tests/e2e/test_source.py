"""What the source is, through the command: what git ignores and the run needs, notebooks, data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

TRAIN = """\
import helper, pkg.tables
from pkg._version import version
print(helper.word, version, pkg.tables.read(), open("/data/a.csv").read().strip())
"""
NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
    {"cell_type": "code", "source": "1 + 1", "execution_count": 1, "outputs": [], "metadata": {}},
]}  # fmt: skip


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def made(ground: Path) -> parts.Project:
    """A project of the `src` kind on its path by a `.pth` file, with generated and vendored code that git ignores."""
    folder = ground / "source" / "project"
    python = parts.venv(folder / ".venv", own_pip=False)
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (site / "project.pth").write_text(f"{folder}/src\n")
    write(
        folder,
        **{
            ".gitignore": ".venv/\n_version.py\n*.dat\n/vendored/\n/data/\nrepro/\nruns/\n",
            "train.py": TRAIN,
            "src/pkg/__init__.py": "",
            "src/pkg/_version.py": "version = '1.2'\n",
            "src/pkg/tables.py": "import pathlib\ndef read():\n    return (pathlib.Path(__file__).parent / 't.dat').read_text()\n",
            "src/pkg/t.dat": "table",
            "vendored/helper.py": "word = 'helped'\n",
            "data/a.csv": "1,2\n",
            "note.ipynb": json.dumps(NOTEBOOK),
        },
    )
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    project = parts.project(folder, python, ground / "shared-store")
    project.capture("--data", "../project/data:/data/", env={"PYTHONPATH": str(folder / "vendored")})
    project.rebuild()
    return project


def source(project: parts.Project) -> dict[str, Any]:
    found = json.loads((project.folder / "repro" / "spec.json").read_text())["observed"]
    assert isinstance(found, dict)
    return found


def test_ignored_code_and_data_of_a_package_are_there_in_a_run(made: parts.Project) -> None:
    for more in ([], ["--frozen"]):
        done = made.run("exec", "-v", *more, "--data", "data:/data", "python", "train.py")
        assert done.out == "helped 1.2 table 1,2\n"
        assert ("captured source (--frozen)" if more else "source as captured") in done.err


def test_what_was_seen_is_written_down(made: parts.Project) -> None:
    seen = source(made)
    code = seen["source"]
    assert code["include"] == ["/vendored"]
    assert "vendored is in the source although git ignores it, because Python imports from it" in seen["notes"]
    assert [one["path"] for one in code["notebooks"]] == ["note.ipynb"]
    assert (code["git"]["dirty"], code["git"]["untracked"]) == (False, [])
    assert [one["path"] for one in seen["data"]] == ["/data"]


def test_the_same_again(made: parts.Project) -> None:
    before = (made.folder / "repro" / "spec.json").read_bytes()
    made.capture("--data", "data:/data", env={"PYTHONPATH": str(made.folder / "vendored")})
    assert (made.folder / "repro" / "spec.json").read_bytes() == before


def test_a_notebook_that_was_run_again(made: parts.Project) -> None:
    path = made.folder / "note.ipynb"
    before = path.read_text()
    cell = {**NOTEBOOK["cells"][0], "execution_count": 9, "outputs": [{"output_type": "stream", "name": "stdout", "text": "2"}]}  # type: ignore[index]
    try:
        path.write_text(json.dumps({**NOTEBOOK, "cells": [cell]}, indent=1))
        said = made.run("exec", "-v", "--data", "data:/data", "python", "train.py").err
        assert "changed since capture: ~ note.ipynb (same code)" in said
        assert "notebook: same code" in made.run("check", "--project", code=0).out
        path.write_text(json.dumps({**NOTEBOOK, "cells": [{**cell, "source": "1 + 2"}]}))
        said = made.run("exec", "-v", "--data", "data:/data", "python", "train.py").err
        assert "changed since capture: ~ note.ipynb, " in said
        assert "notebook: code" in made.run("check", "--project", code=1).out
    finally:
        path.write_text(before)


def test_data_that_changed_or_cannot_be_mounted(made: parts.Project, tmp_path: Path) -> None:
    shutil.copytree(made.folder / "data", tmp_path / "data")
    (tmp_path / "data" / "a.csv").write_text("1,3\n")
    refused = made.run("exec", "--data", f"{tmp_path}/data:/data", "true", code=None)
    assert refused.code
    assert "differ from the capture" in parts.one_sentence(refused)
    for words, why in (
        (["--data", "data:relative"], "the target must be an absolute path"),
        (["--data", "data:/d", "--data", "src:/d"], "has the same target"),
        (["--data", "gone:/d"], "does not exist"),
    ):
        done = made.run("capture", "--python", made.python, "--output", tmp_path / "out", *words, code=None)
        assert done.code
        assert why in parts.one_sentence(done)


def test_a_folder_of_another_file_system_and_a_link_to_it(made: parts.Project, tmp_path: Path) -> None:
    shared = Path("/dev/shm") / f"repro-env-{os.getpid()}"
    shared.mkdir()
    try:
        (shared / "hello.py").write_text("print('hello')\n")
        (tmp_path / "link").symlink_to(shared)
        made.run("capture", "--python", made.python, "--source", tmp_path / "link", "--output", tmp_path / "out")
        spec = json.loads((tmp_path / "out" / "spec.json").read_text())
        assert spec["observed"]["source"]["path"] == str(shared)
        assert spec["observed"]["source"]["git"] is None
    finally:
        shutil.rmtree(shared)
