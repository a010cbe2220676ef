"""A project at another path: a clone, a working tree of git, a moved or copied directory. The code beside the spec runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import parts

TRAIN = (
    "import os, pkg, pkg._version\nprint(os.getcwd(), __file__, pkg.word, pkg.__file__)\nopen('out.txt', 'w').write(pkg.word)\n"
)
EDITABLE = {
    "METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
    "RECORD": "__editable__.pkg-1.0.pth,,\npkg-1.0.dist-info/METADATA,,\npkg-1.0.dist-info/RECORD,,\n",
}


def git(directory: Path, *words: str | Path) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words], cwd=directory, check=True)


@pytest.fixture(scope="module")
def project(ground: Path) -> parts.Project:
    """A committed project that its environment imports in editable mode; captured, and its image is in the store."""
    directory = ground / "clone" / "project"
    python = parts.venv(directory / ".venv", own_pip=False)
    (site,) = (directory / ".venv" / "lib").glob("python*/site-packages")
    (site / "__editable__.pkg-1.0.pth").write_text(f"{directory}/src\n")
    (site / "pkg-1.0.dist-info").mkdir()
    for name, text in EDITABLE.items():
        (site / "pkg-1.0.dist-info" / name).write_text(text)
    direct = {"url": f"file://{directory}", "dir_info": {"editable": True}}
    (site / "pkg-1.0.dist-info" / "direct_url.json").write_text(json.dumps(direct))
    (directory / "src" / "pkg").mkdir(parents=True)
    (directory / "src" / "pkg" / "__init__.py").write_text("word = 'captured'\n")
    (directory / "src" / "pkg" / "_version.py").write_text("version = '1.0'\n")  # as setuptools-scm and hatch-vcs write it
    (directory / "train.py").write_text(TRAIN)
    (directory / "src" / "pkg.egg-info").mkdir()
    (directory / "src" / "pkg.egg-info" / "PKG-INFO").write_text(EDITABLE["METADATA"])
    (directory / ".gitignore").write_text(".venv/\nruns/\ndata/\n*.egg-info/\n_version.py\n")
    (directory / "data").mkdir()
    (directory / "data" / "a.csv").write_text("1")
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "code")
    made = parts.project(directory, python, ground / "shared-store")
    made.capture()
    made.rebuild()
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "spec")
    return made


def edited(project: parts.Project, directory: Path, word: str) -> parts.Project:
    (directory / "src" / "pkg" / "__init__.py").write_text(f"word = '{word}'\n")
    return project._replace(directory=directory)


def test_a_clone_runs_its_own_code_at_the_captured_path(project: parts.Project, tmp_path: Path) -> None:
    """The original is not there, as for another user; the clone has no blobs, because git ignores them."""
    (tmp_path / "team mate").mkdir()
    git(tmp_path, "clone", "--quiet", project.directory, "team mate/theirs")
    fresh = project._replace(directory=tmp_path / "team mate" / "theirs")
    same = fresh.run("check", "--project").out
    assert "same" in same, "what `pip install -e` left beside the code is in no clone"
    assert "- src/pkg/_version.py" in same
    assert "git-ignored and missing here: runs use the captured file" in same
    clone = edited(project, tmp_path / "team mate" / "theirs", "cloned")
    assert not (clone.directory / "repro" / "blobs").exists()
    assert clone.run("check", "--project", code=1).out.count("~ src/pkg/__init__.py") == 1
    away = project.directory.rename(project.directory.with_name("away"))
    home = {"HOME": str(tmp_path)}
    try:
        for cwd, spec in ((clone.directory, "repro"), (tmp_path, clone.directory / "repro")):
            done = clone.run("exec", "--spec", spec, "train.py", cwd=cwd, env=home)
            at = project.directory
            assert done.out == f"{at} {at}/train.py cloned {at}/src/pkg/__init__.py\n"
            assert f"source {clone.directory} changed since capture: ~ src/pkg/__init__.py" in done.err
            assert "with the captured src/pkg/_version.py (git-ignored, missing here)" in done.err
            assert "egg-info" not in done.err
        verified = clone.run("verify", "latest", env=home)
        assert "bitwise" in verified.out
        (clone.directory / "data").mkdir()
        (clone.directory / "data" / "a.csv").write_text("2")
        assert clone.run("exec", "--data", "data", "-c", "print(open('data/a.csv').read())", env=home).out == "2\n"
        captured = clone.run("exec", "--frozen", "train.py", env=home)
        assert " captured " in captured.out
        assert "captured source (--frozen)" in captured.err
        assert len(list((clone.directory / "runs").glob("2*"))) == 4
        unpacked = (
            clone.store
            / "layers"
            / json.loads((clone.directory / "repro/spec.json").read_text())["observed"]["source"]["tree"]["sha256"][7:]
        )
        assert unpacked.is_dir()
        hidden = unpacked.rename(tmp_path / "unpacked")
        done = clone.run("exec", "train.py", code=1, env=home)
        hidden.rename(unpacked)
        assert "- src/pkg/_version.py (git-ignored, and the captured file is not on this machine)" in done.err
        bare = clone.elsewhere(tmp_path / "store")
        message = parts.one_sentence(bare.run("exec", "train.py", code=11, env=home))
        assert "repro-env rebuild FILE|REF" in message
    finally:
        away.rename(project.directory)
    assert not (project.directory / "runs").exists()


def test_a_copy_a_working_tree_and_a_moved_project_run_their_own_code(project: parts.Project, tmp_path: Path) -> None:
    git(project.directory, "worktree", "add", "--quiet", tmp_path / "tree", "-b", "other")
    shutil.copytree(project.directory, tmp_path / "copied", ignore=shutil.ignore_patterns(".venv"))
    (tmp_path / "copied").rename(tmp_path / "moved")
    (tmp_path / "moved" / "src" / "pkg" / "_version.py").write_text("version = '2.0'\n")
    for name in ("tree", "moved"):
        here = edited(project, tmp_path / name, name)
        assert f" {name} " in here.run("exec", "train.py").out
        assert (next((here.directory / "runs").glob("2*")) / "files" / "out.txt").read_text() == name
    done = project.run("exec", "--source", tmp_path / "tree", "train.py")
    assert " tree " in done.out
    assert f"source {tmp_path / 'tree'} changed since capture" in done.err
    shutil.rmtree(project.directory / "runs")


def test_the_host_runner_does_not_import_the_original_in_a_copy(
    project: parts.Project, small: parts.Project, tmp_path: Path
) -> None:
    shutil.copytree(project.directory, tmp_path / "copy", ignore=shutil.ignore_patterns(".venv"))
    copy = edited(project, tmp_path / "copy", "copied")
    message = parts.one_sentence(copy.run("exec", "--runner", "host", "train.py", code=18))
    assert f"imports pkg from {project.directory}" in message
    assert not (tmp_path / "copy" / "out.txt").exists()


def test_what_is_sent_is_the_captured_code_and_edited_code_is_named(project: parts.Project, tmp_path: Path) -> None:
    shutil.copytree(project.directory, tmp_path / "copy", ignore=shutil.ignore_patterns(".venv"))
    copy = edited(project, tmp_path / "copy", "copied")
    (copy.directory / "new.py").touch()
    for words in (("pack", "repro", "../x.tar"), ("push", "registry.example.com/team/name:1")):
        message = parts.one_sentence(copy.run(*words, code=8))
        assert "2 files differ from the captured code, which would be sent: + new.py, ~ src/pkg/__init__.py" in message
        assert "--frozen" in message
    assert not (tmp_path / "x.tar").exists()
    copy.run("pack", "repro", "../x.tar", "--frozen")
    done = copy.run("exec", "--spec", tmp_path / "x.tar", "train.py")
    assert " captured " in done.out
    assert f"to run the code here: --source {copy.directory}" in done.err


def test_a_capture_names_what_a_clone_will_lack(project: parts.Project) -> None:
    text = project.run("capture", "--python", project.python).err
    assert re.search(r"^commit repro/: Git ignores its blobs/ \(\d+ files, \S+ .B\), so a clone lacks ", text, re.MULTILINE)
    assert (
        "for clones: repro-env push REGISTRY/NAME, and commit repro/remote.json; or send them repro-env pack repro FILE" in text
    )
    assert len(text.splitlines()) <= 4
