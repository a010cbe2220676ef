"""What the source is, through the command: what git ignores and the run needs, and data."""

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


def write(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


@pytest.fixture(scope="module")
def made(ground: Path) -> parts.Project:
    """A project of the `src` kind on its path by a `.pth` file, with generated and vendored code that git ignores."""
    directory = ground / "source" / "project"
    python = parts.venv(directory / ".venv", own_pip=False)
    (site,) = (directory / ".venv" / "lib").glob("python*/site-packages")
    (site / "project.pth").write_text(f"{directory}/src\n")
    write(
        directory,
        **{
            ".gitignore": ".venv/\n_version.py\n*.dat\n/vendored/\n/data/\nrepro/\nruns/\n",
            "train.py": TRAIN,
            "src/pkg/__init__.py": "",
            "src/pkg/_version.py": "version = '1.2'\n",
            "src/pkg/tables.py": "import pathlib\ndef read():\n    return (pathlib.Path(__file__).parent / 't.dat').read_text()\n",
            "src/pkg/t.dat": "table",
            "vendored/helper.py": "word = 'helped'\n",
            "data/a.csv": "1,2\n",
        },
    )
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=directory, check=True)
    project = parts.project(directory, python, ground / "shared-store")
    project.capture("--data", "../project/data:/data/", env={"PYTHONPATH": str(directory / "vendored")})
    project.rebuild()
    return project


def source(project: parts.Project) -> dict[str, Any]:
    content = json.loads((project.directory / "repro" / "spec.json").read_text())["observed"]
    assert isinstance(content, dict)
    return content


def test_ignored_code_and_data_of_a_package_are_there_in_a_run(made: parts.Project) -> None:
    for more in ([], ["--frozen"]):
        done = made.run("exec", "-v", *more, "--data", "data:/data", "python", "train.py")
        assert done.out == "helped 1.2 table 1,2\n"
        assert ("captured source (--frozen)" if more else "source as captured") in done.err


def test_the_spec_records_the_facts_about_the_source(made: parts.Project) -> None:
    seen = source(made)
    code = seen["source"]
    assert code["include"] == ["/vendored"]
    assert "vendored is in the source although git ignores it, because Python imports from it" in seen["remarks"]
    assert (code["git"]["dirty"], code["git"]["untracked"]) == (False, [])
    assert [data_entry["path"] for data_entry in seen["data"]] == ["/data"]


def test_a_second_capture_writes_the_same_spec(made: parts.Project) -> None:
    before = (made.directory / "repro" / "spec.json").read_bytes()
    made.capture("--data", "data:/data", env={"PYTHONPATH": str(made.directory / "vendored")})
    assert (made.directory / "repro" / "spec.json").read_bytes() == before


def test_changed_data_and_invalid_mounts_are_refused(made: parts.Project, tmp_path: Path) -> None:
    shutil.copytree(made.directory / "data", tmp_path / "data")
    (tmp_path / "data" / "a.csv").write_text("1,3\n")
    refused = made.run("exec", "--data", f"{tmp_path}/data:/data", "true", code=None)
    assert refused.code
    assert "differ from the capture" in parts.one_sentence(refused)
    for words, why in (
        (["--data", "data:relative"], "with an absolute DST"),
        (["--data", "data:/d", "--data", "src:/d"], "two mounts have the same target"),
        (["--data", "gone:/d"], "does not exist"),
    ):
        done = made.run("capture", "--python", made.python, "--output", tmp_path / "out", *words, code=None)
        assert done.code
        assert why in parts.one_sentence(done)


def test_a_source_behind_a_link_to_another_file_system_is_captured(made: parts.Project, tmp_path: Path) -> None:
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
