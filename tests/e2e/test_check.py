"""`repro-env check`: each thing that can change is named, nothing that did not is, and what cannot be compared is no "same"."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.e2e.answers import check, rows

PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")


@pytest.fixture(scope="module")
def captured(ground: Path) -> parts.Project:
    """A project and its capture, and next to it a copy of both."""
    directory = ground / "check"
    python = parts.venv(directory / ".venv", *PACKAGES, own_pip=False)
    made = parts.project(directory / "project", python, ground / "shared-store")
    (made.directory / "train.py").write_text("print('trained')\n")
    (made.directory / "requirements.txt").write_text("mdurl\n")
    made.capture("--exclude", "*.log")
    shutil.copytree(made.directory, directory / "kept")
    return made


@pytest.fixture
def project(captured: parts.Project) -> Iterator[parts.Project]:
    """The captured project. What a test changes in it is undone; what it changes in the environment, it puts right itself."""
    yield captured
    shutil.rmtree(captured.directory)
    shutil.copytree(captured.directory.with_name("kept"), captured.directory)


def site(python: Path) -> Path:
    (result,) = python.parents[1].glob("lib/python*/site-packages")
    return result


def pip(python: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *words, "-qq"]
    subprocess.run(command, check=True, capture_output=True)


def test_nothing_changed_is_the_same_without_any_index(project: parts.Project) -> None:
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    result = check(project, env={**nowhere, "NO_PROXY": "", "no_proxy": ""})
    assert result["same"] is True
    assert (result["differences"], result["not_compared"]) == ([], [])
    assert set(result) == {"same", "spec", "spec_digest", "environment", "source", "differences", "not_compared"}
    assert (result["environment"], result["source"]) == (str(project.python), str(project.directory))
    out = project.run("check").out
    assert "same: nothing changed since the capture" in out


def test_each_touched_file_is_named_with_its_distribution(project: parts.Project) -> None:
    directory = site(project.python)
    with (directory / "mdurl" / "_parse.py").open("a") as file:
        file.write("EDITED = True\n")
    (directory / "packaging" / "tags.py").unlink()
    (compiled,) = (directory / "packaging" / "__pycache__").glob("tags.*.pyc")
    (directory / "pygments" / "util.py").chmod(0o755)
    (directory / "sitecustomize.py").write_text("import os\n")
    (directory / "stray.pth").write_text("import sys\n")
    (project.python.parent / "tool").write_text("#!/bin/sh\n")
    result = check(project)
    assert rows(result) == {
        "mdurl/_parse.py": ("distributions", "~", "mdurl"),
        "packaging/tags.py": ("distributions", "~", "packaging"),
        f"packaging/__pycache__/{compiled.name}": ("files", "+", ""),  # bytecode of no source is a file like any other
        "pygments/util.py": ("distributions", "~", "pygments"),
        "sitecustomize.py": ("files", "+", ""),
        "stray.pth": ("files", "+", ""),
        "bin/tool": ("files", "+", ""),
    }
    differences = {difference["what"].rpartition("/")[2]: difference for difference in result["differences"]}
    assert differences["tags.py"]["right"] == "removed"
    assert differences["_parse.py"]["left"] == "as in mdurl"
    assert "every start" in differences["sitecustomize.py"]["why"]
    # Captured as it is now, and put right again: that is a change too.
    project.capture("--exclude", "*.log")
    pip(project.python, "install", "--force-reinstall", "--no-deps", *PACKAGES)
    for path in (directory / "sitecustomize.py", directory / "stray.pth", project.python.parent / "tool"):
        path.unlink()
    for compiled in (directory / "__pycache__").glob("sitecustomize.*.pyc"):  # bytecode of no source would be one more
        compiled.unlink()
    result = check(project)
    assert rows(result)["mdurl/_parse.py"] == ("distributions", "~", "mdurl")
    assert rows(result)["stray.pth"] == ("files", "-", "")
    assert len(rows(result)) == 7
    assert {entry["what"].rpartition("/")[2]: entry["right"] for entry in result["differences"]}["tags.py"] == "as in packaging"


def test_changed_packages_are_listed_by_version(project: parts.Project) -> None:
    try:
        pip(project.python, "install", "packaging==26.2", "six==1.17.0")
        pip(project.python, "uninstall", "-y", "mdurl")
        result = check(project)
        assert rows(result) == {
            "packaging": ("distributions", "~", ""),
            "six": ("distributions", "+", ""),
            "mdurl": ("distributions", "-", ""),
        }
        text = project.run("check", code=1).out
        assert "drifted: 3 differences" in text
        assert "~ packaging  26.3 -> 26.2" in text
    finally:
        pip(project.python, "uninstall", "-y", "six")
        pip(project.python, "install", *PACKAGES)


def test_new_packages_are_named_when_no_index_answers(project: parts.Project) -> None:
    pip(project.python, "install", "six==1.16.0")  # a version that no other test has
    pip(project.python, "uninstall", "-y", "mdurl")
    try:
        broken = {
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_RETRIES": "0",
        }
        result = check(project, "--environment", env=broken)
    finally:
        pip(project.python, "uninstall", "-y", "six")
        pip(project.python, "install", *PACKAGES)
    assert rows(result) == {"mdurl": ("distributions", "-", ""), "six": ("distributions", "+", "")}
    assert [entry["what"] for entry in result["not_compared"]] == ["files of the environment"]


def test_variables_that_change_numbers_are_differences(project: parts.Project) -> None:
    result = check(project, env={"OMP_NUM_THREADS": "3", "SOME_OTHER": "x"})
    assert rows(result) == {"OMP_NUM_THREADS": ("numerics", "+", "")}
    result = check(project, env={"PYTHONPATH": str(project.directory)})
    assert rows(result) == {"PYTHONPATH": ("layout", "+", "")}


def test_changed_code_is_listed_by_file(project: parts.Project) -> None:
    (project.directory / "train.py").write_text("print('trained otherwise')\n")
    (project.directory / "requirements.txt").unlink()
    (project.directory / "new.py").write_text("pass\n")
    (project.directory / "x.log").write_text("left out by the rule of the capture\n")
    result = check(project)
    assert rows(result) == {
        "train.py": ("source", "~", ""),
        "requirements.txt": ("source", "-", ""),
        "new.py": ("source", "+", ""),
    }
    assert check(project, "--environment")["same"] is True
    assert rows(check(project, "--project")) == rows(result)


def test_changed_data_is_a_difference(project: parts.Project, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1,2\n")
    project.capture("--exclude", "*.log", "--data", data)
    assert check(project)["same"] is True
    (data / "a.csv").write_text("1,3\n")
    assert rows(check(project)) == {str(data): ("data", "~", "")}
    (data / "a.csv").write_text("1,2\n")
    data.rename(tmp_path / "moved")
    result = check(project)
    assert rows(result) == {}
    assert [entry["what"] for entry in result["not_compared"]] == [f"data {data}"]
    assert "not compared: no difference was found" in project.run("check", code=1).out
    assert check(project, "--data", f"{tmp_path / 'moved'}:{data}")["same"] is True


def test_a_difference_is_found_without_the_blobs_of_the_spec(project: parts.Project) -> None:
    shutil.rmtree(project.directory / "repro" / "blobs")
    assert check(project)["same"] is True, "digests are enough for that"
    (site(project.python) / "stray.py").write_text("pass\n")
    (project.directory / "train.py").write_text("print('other')\n")
    try:
        result = check(project)
    finally:
        (site(project.python) / "stray.py").unlink()
    reasons = {
        difference["what"]: difference["why"]
        for difference in result["differences"]
        if difference["level"] in ("files", "source")
    }
    assert set(reasons) == {"files of the overlay", "train.py"}
    assert "are unknown" in reasons["files of the overlay"]


def test_a_missing_environment_is_an_error(project: parts.Project) -> None:
    prefix = project.python.parents[1]
    prefix.rename(prefix.with_name("away"))
    try:
        done = project.run("check", code=18)
        assert done.out == ""
        assert "--project" in parts.one_sentence(done)
        assert check(project, "--project")["same"] is True
    finally:
        prefix.with_name("away").rename(prefix)


def test_a_spec_of_a_stranger_starts_no_program(project: parts.Project, tmp_path: Path) -> None:
    """It names programs and directories of this machine; only the user says that they are meant."""
    mark = tmp_path / "started"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\n")
    trap.chmod(0o755)
    directory = tmp_path / "downloads" / "repro"
    directory.mkdir(parents=True)
    text = (project.directory / "repro" / "spec.json").read_text()
    (directory / "spec.json").write_text(text.replace(str(project.python), str(trap)))
    done = project.run("check", directory, code=18)
    assert "not captured here" in parts.one_sentence(done)
    assert project.run("check", directory, "--environment", code=18).out == ""
    assert not mark.exists()
    result = check(project, directory, "--python", project.python)
    assert "source" in {entry["what"] for entry in result["not_compared"]}
    result = check(project, directory, "--python", project.python, "--source", project.directory)
    assert {
        difference["what"] for difference in result["differences"] if difference["counts"] and difference["level"] != "digests"
    } == {"command"}
    assert not mark.exists()


def git(directory: Path, *words: str) -> None:
    own = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", directory, *own, *words], check=True, capture_output=True)


def test_a_fresh_clone_is_the_same_without_store_blobs_and_environment(project: parts.Project, tmp_path: Path) -> None:
    """As on a CI machine: the spec is committed after the capture, blobs and empty directories are not."""
    directory = project.directory
    (directory / "outputs").mkdir()
    git(directory, "init", "-q")
    git(directory, "add", "train.py", "requirements.txt")
    git(directory, "commit", "-qm", "one")
    project.capture()
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "the spec")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(directory), str(clone))
    assert not (clone / "repro" / "blobs").exists()
    there = parts.Project(clone, project.python, tmp_path / "store")
    result = check(there, "--project")
    assert result["same"] is True
    assert [(difference["what"], difference["counts"]) for difference in result["differences"]] == [("commit", False)]
    assert not list((tmp_path / "store" / "layers").iterdir())
    (clone / "train.py").write_text("print('other')\n")
    (clone / "requirements.txt").write_text("torch\n")
    git(clone, "rm", "-q", "--cached", "train.py")
    git(clone, "add", "train.py", "requirements.txt")
    git(clone, "commit", "-qm", "two")
    result = check(there, "--project")
    assert rows(result) == {"train.py": ("source", "~", ""), "requirements.txt": ("source", "~", "")}
    elsewhere = parts.Project(tmp_path, project.python, tmp_path / "store")
    assert rows(check(elsewhere, directory, "--project", "--source", clone)).keys() == {"train.py", "requirements.txt"}


@pytest.mark.parametrize(
    "words",
    [
        ("--environment", "--project"),
        ("--project", "--python", "python3"),
        ("--environment", "--source", "."),
        ("--project", "--data", "x"),
        ("--source", "/nowhere"),
        ("--nonsense",),
    ],
)
def test_contradictory_options_are_refused(captured: parts.Project, words: Sequence[str]) -> None:
    assert captured.run("check", *words, code=2).out == ""


def test_a_missing_or_damaged_spec_is_reported(project: parts.Project, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    project.run("check", cwd=empty, code=3)
    path = project.directory / "repro" / "spec.json"
    path.write_text(path.read_text()[:1000])
    assert "truncated" in parts.one_sentence(project.run("check", code=3))
