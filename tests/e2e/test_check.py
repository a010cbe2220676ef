"""`repro-env check`: each thing that can change is named, nothing that did not is, and what cannot be compared is no "same"."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")


@pytest.fixture(scope="module")
def python(ground: Path) -> Path:
    """An environment that the tests of this module change; each captures it first as it finds it."""
    return parts.venv(ground / "check" / ".venv", *PACKAGES)


@pytest.fixture(scope="module")
def first(python: Path, ground: Path) -> parts.Project:
    """A capture that stays as it is: its base and interpreter are compressed once for all tests."""
    made = parts.project(ground / "check" / "first", python, ground / "shared-store")
    made.capture()
    return made


@pytest.fixture
def project(python: Path, ground: Path, first: parts.Project, tmp_path: Path) -> parts.Project:
    made = parts.project(tmp_path / "project", python, ground / "shared-store")
    parts.lay(parts.large_blobs(first.folder), made.folder)
    (made.folder / "train.py").write_text("print('trained')\n")
    (made.folder / "requirements.txt").write_text("mdurl\n")
    made.capture("--exclude", "*.log")
    return made


def site(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python*/site-packages")
    return found


def pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words, "-qq"]
    subprocess.run(command, check=True, capture_output=True)


def check(made: parts.Project, *words: str | Path, code: int | None = None, **options: Any) -> dict[str, Any]:
    """`check --json`; the exit code has to fit the answer."""
    done = made.run("check", "--json", *words, code=code, **options)
    assert done.out.count("\n") == 1, done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    assert done.code == (0 if found["same"] else 1)
    return found


def rows(found: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """What counts and follows from nothing else: last part of its name -> (level, mark, of)."""
    named = {}
    for one in found["differences"]:
        if one["counts"] and one["level"] != "digests":
            mark = "+" if not one["left"] else "-" if not one["right"] else "~"
            named[one["what"].rpartition("site-packages/")[2]] = (one["level"], mark, one["of"])
    return named


def test_nothing_changed_is_the_same_without_any_index(project: parts.Project) -> None:
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    found = check(project, env={**nowhere, "NO_PROXY": "", "no_proxy": ""})
    assert found["same"] is True
    assert (found["differences"], found["not_compared"]) == ([], [])
    assert set(found) == {"same", "spec", "spec_digest", "environment", "source", "differences", "not_compared"}
    assert (found["environment"], found["source"]) == (str(project.python), str(project.folder))
    out = project.run("check").out
    assert "same: nothing changed since the capture" in out


def test_each_touched_file_is_named_with_its_distribution(project: parts.Project) -> None:
    folder = site(project.python)
    with (folder / "mdurl" / "_parse.py").open("a") as file:
        file.write("EDITED = True\n")
    (folder / "packaging" / "tags.py").unlink()
    (compiled,) = (folder / "packaging" / "__pycache__").glob("tags.*.pyc")
    (folder / "pygments" / "util.py").chmod(0o755)
    (folder / "sitecustomize.py").write_text("import os\n")
    (folder / "stray.pth").write_text("import sys\n")
    (project.python.parent / "tool").write_text("#!/bin/sh\n")
    found = check(project)
    assert rows(found) == {
        "mdurl/_parse.py": ("distributions", "~", "mdurl"),
        "packaging/tags.py": ("distributions", "~", "packaging"),
        f"packaging/__pycache__/{compiled.name}": ("files", "+", ""),  # bytecode of no source is a file like any other
        "pygments/util.py": ("distributions", "~", "pygments"),
        "sitecustomize.py": ("files", "+", ""),
        "stray.pth": ("files", "+", ""),
        "bin/tool": ("files", "+", ""),
    }
    told = {one["what"].rpartition("/")[2]: one for one in found["differences"]}
    assert told["tags.py"]["right"] == "removed"
    assert told["_parse.py"]["left"] == "as in mdurl"
    assert "every start" in told["sitecustomize.py"]["why"]
    # Captured as it is now, and put right again: that is a change too.
    project.capture("--exclude", "*.log")
    pip(project.python, "install", "--force-reinstall", "--no-deps", *PACKAGES)
    for path in (folder / "sitecustomize.py", folder / "stray.pth", project.python.parent / "tool"):
        path.unlink()
    for compiled in (folder / "__pycache__").glob("sitecustomize.*.pyc"):  # bytecode of no source would be one more
        compiled.unlink()
    found = check(project)
    assert rows(found)["mdurl/_parse.py"] == ("distributions", "~", "mdurl")
    assert rows(found)["stray.pth"] == ("files", "-", "")
    assert len(rows(found)) == 7
    assert {entry["what"].rpartition("/")[2]: entry["right"] for entry in found["differences"]}["tags.py"] == "as in packaging"


def test_packages_by_version(project: parts.Project) -> None:
    try:
        pip(project.python, "install", "packaging==26.2", "six==1.17.0")
        pip(project.python, "uninstall", "-y", "mdurl")
        found = check(project)
        assert rows(found) == {
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


def test_what_is_new_can_be_named_when_no_index_answers(project: parts.Project) -> None:
    pip(project.python, "uninstall", "-y", "mdurl")
    try:
        broken = {
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_RETRIES": "0",
        }
        found = check(project, "--environment", env=broken)
    finally:
        pip(project.python, "install", *PACKAGES)
    assert rows(found) == {"mdurl": ("distributions", "-", "")}
    assert [one["what"] for one in found["not_compared"]] == ["files of the environment"]


def test_variables_that_change_numbers(project: parts.Project) -> None:
    found = check(project, env={"OMP_NUM_THREADS": "3", "SOME_OTHER": "x"})
    assert rows(found) == {"OMP_NUM_THREADS": ("numerics", "+", "")}
    found = check(project, env={"PYTHONPATH": str(project.folder)})
    assert rows(found) == {"PYTHONPATH": ("layout", "+", "")}


def test_the_code_by_name(project: parts.Project) -> None:
    (project.folder / "train.py").write_text("print('trained otherwise')\n")
    (project.folder / "requirements.txt").unlink()
    (project.folder / "new.py").write_text("pass\n")
    (project.folder / "x.log").write_text("left out by the rule of the capture\n")
    found = check(project)
    assert rows(found) == {
        "train.py": ("source", "~", ""),
        "requirements.txt": ("source", "-", ""),
        "new.py": ("source", "+", ""),
    }
    assert check(project, "--environment")["same"] is True
    assert rows(check(project, "--project")) == rows(found)


def test_data_named_at_capture(project: parts.Project, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1,2\n")
    project.capture("--exclude", "*.log", "--data", data)
    assert check(project)["same"] is True
    (data / "a.csv").write_text("1,3\n")
    assert rows(check(project)) == {str(data): ("data", "~", "")}
    (data / "a.csv").write_text("1,2\n")
    data.rename(tmp_path / "moved")
    found = check(project)
    assert rows(found) == {}
    assert [one["what"] for one in found["not_compared"]] == [f"data {data}"]
    assert "not compared: no difference was found" in project.run("check", code=1).out
    assert check(project, "--data", f"{tmp_path / 'moved'}:{data}")["same"] is True


def test_without_its_blobs_a_difference_is_still_one(project: parts.Project) -> None:
    shutil.rmtree(project.folder / "repro" / "blobs")
    assert check(project)["same"] is True, "digests are enough for that"
    (site(project.python) / "stray.py").write_text("pass\n")
    (project.folder / "train.py").write_text("print('other')\n")
    try:
        found = check(project)
    finally:
        (site(project.python) / "stray.py").unlink()
    said = {one["what"]: one["why"] for one in found["differences"] if one["level"] in ("files", "source")}
    assert set(said) == {"files of the overlay", "train.py"}
    assert "are unknown" in said["files of the overlay"]


def test_an_environment_that_is_gone_is_no_answer(project: parts.Project) -> None:
    prefix = project.python.parents[1]
    prefix.rename(prefix.with_name("away"))
    try:
        done = project.run("check", code=18)
        assert done.out == ""
        assert "--project" in parts.one_sentence(done)
        assert check(project, "--project")["same"] is True
    finally:
        prefix.with_name("away").rename(prefix)


def test_a_strangers_spec_starts_nothing_unasked(project: parts.Project, tmp_path: Path) -> None:
    """It names programs and folders of this machine; only the user says that they are meant."""
    mark = tmp_path / "started"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\n")
    trap.chmod(0o755)
    folder = tmp_path / "downloads" / "repro"
    folder.mkdir(parents=True)
    text = (project.folder / "repro" / "spec.json").read_text()
    (folder / "spec.json").write_text(text.replace(str(project.python), str(trap)))
    done = project.run("check", folder, code=18)
    assert "not captured here" in parts.one_sentence(done)
    assert project.run("check", folder, "--environment", code=18).out == ""
    assert not mark.exists()
    found = check(project, folder, "--python", project.python)
    assert "source" in {one["what"] for one in found["not_compared"]}
    found = check(project, folder, "--python", project.python, "--source", project.folder)
    assert {one["what"] for one in found["differences"] if one["counts"] and one["level"] != "digests"} == {"command"}
    assert not mark.exists()


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *own, *words], check=True, capture_output=True)


def test_a_fresh_clone_is_the_same_without_store_blobs_and_environment(project: parts.Project, tmp_path: Path) -> None:
    """As on a CI machine: the spec is committed after the capture, blobs and empty folders are not."""
    folder = project.folder
    (folder / "outputs").mkdir()
    git(folder, "init", "-q")
    git(folder, "add", "train.py", "requirements.txt")
    git(folder, "commit", "-qm", "one")
    project.capture()
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "the spec")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(folder), str(clone))
    assert not (clone / "repro" / "blobs").exists()
    there = parts.Project(clone, project.python, tmp_path / "store")
    found = check(there, "--project")
    assert found["same"] is True
    assert [(one["what"], one["counts"]) for one in found["differences"]] == [("commit", False)]
    assert not list((tmp_path / "store" / "layers").iterdir())
    (clone / "train.py").write_text("print('other')\n")
    (clone / "requirements.txt").write_text("torch\n")
    git(clone, "rm", "-q", "--cached", "train.py")
    git(clone, "add", "train.py", "requirements.txt")
    git(clone, "commit", "-qm", "two")
    found = check(there, "--project")
    assert rows(found) == {"train.py": ("source", "~", ""), "requirements.txt": ("source", "~", "")}
    elsewhere = parts.Project(tmp_path, project.python, tmp_path / "store")
    assert rows(check(elsewhere, folder, "--project", "--source", clone)).keys() == {"train.py", "requirements.txt"}


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
def test_words_that_contradict_each_other(first: parts.Project, words: Sequence[str]) -> None:
    assert first.run("check", *words, code=2).out == ""


def test_no_spec_and_a_broken_one(project: parts.Project, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    project.run("check", cwd=empty, code=3)
    path = project.folder / "repro" / "spec.json"
    path.write_text(path.read_text()[:1000])
    assert "truncated" in parts.one_sentence(project.run("check", code=3))
