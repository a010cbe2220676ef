"""What git knows, asked of real repositories, without making git run anything."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from repro_env.capture import git as asked
from repro_env.model.environment import Git as Facts
from tests.capture.conftest import Git


def facts(root: Path, **options: object) -> Facts:
    answer = asked.look(root, **options)  # type: ignore[arg-type]
    assert answer.problem == ""
    assert answer.git is not None
    return answer.git


@pytest.fixture
def repo(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_clean(repo: Path, git: Git) -> None:
    assert facts(repo) == Facts(
        commit=git(repo, "rev-parse", "HEAD"),
        branch="main",
        remote="",
        pushed="no",
        dirty=False,
        diff=None,
        untracked=(),
        submodules=(),
    )


def test_no_repository(tmp_path: Path) -> None:
    assert asked.look(tmp_path) == asked.Answer(None, "")
    assert asked.ignored(tmp_path) == asked.Ignored(frozenset(), "")


def test_dirty(repo: Path, git: Git) -> None:
    (repo / "train.py").write_text("print(2)\n")
    (repo / "ünï new.py").write_text("")
    said = facts(repo)
    diff = subprocess.run(["git", "-C", repo, "diff", "--binary", "--full-index", "HEAD"], capture_output=True, check=True).stdout
    assert said.diff == "sha256:" + hashlib.sha256(diff).hexdigest()
    assert (said.dirty, said.untracked) == (True, ("ünï new.py",))
    git(repo, "add", ".")
    staged = facts(repo)
    assert staged.untracked == ()
    assert staged.diff != said.diff
    assert facts(repo, held=set()).dirty is True
    git(repo, "reset", "--hard")
    (repo / "new").write_text("")
    assert (facts(repo).dirty, facts(repo, held=set()).dirty) == (True, False)


def test_a_users_settings_change_no_digest(repo: Path, git: Git) -> None:
    (repo / "train.py").write_text("print(2)\n")
    (repo / "b").write_text("x\n" * 20)
    git(repo, "add", "b")
    plain = facts(repo).diff
    for key, value in {
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "diff.algorithm": "patience",
        "diff.context": "9",
        "diff.renames": "copies",
        "core.abbrev": "5",
        "color.ui": "always",
        "diff.external": "/bin/false",
        "diff.relative": "true",
        "core.pager": "/bin/false",
    }.items():
        git(repo, "config", key, value)
    assert facts(repo).diff == plain


def test_only_what_counts_is_in_the_diff(repo: Path, git: Git) -> None:
    (repo / "out").mkdir()
    (repo / "out" / "spec.json").write_text("1")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "output too")
    (repo / "out" / "spec.json").write_text("2")
    assert facts(repo).dirty is True
    assert facts(repo, never=[repo / "out", repo.parent / "away"]).dirty is False


def test_unborn_branch(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "fresh")
    (tmp_path / "fresh" / "a.py").write_text("")
    said = facts(tmp_path / "fresh")
    assert (said.commit, said.branch, said.dirty, said.diff, said.untracked) == ("", "main", True, None, ("a.py",))
    git(tmp_path / "fresh", "add", ".")
    assert facts(tmp_path / "fresh").diff is not None


def test_detached_and_worktree(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    assert facts(tmp_path / "tree").branch == "side"
    git(tmp_path / "tree", "checkout", "--detach")
    assert facts(tmp_path / "tree").branch == ""
    assert facts(tmp_path / "tree").commit == facts(repo).commit


def test_a_bare_repository_and_git_itself(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "clone", "--bare", str(repo), str(tmp_path / "bare.git"))
    assert asked.look(tmp_path / "bare.git").git is None
    assert asked.look(repo / ".git").problem != ""


def test_pushed(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "clone", "--bare", str(repo), str(tmp_path / "bare.git"))
    git(repo, "remote", "add", "backup", "https://ann:secret@example.org/backup.git")
    assert (facts(repo).remote, facts(repo).pushed) == ("https://example.org/backup.git", "unknown")
    git(repo, "remote", "add", "origin", str(tmp_path / "bare.git"))
    git(repo, "fetch", "origin")
    assert (facts(repo).remote, facts(repo).pushed) == (str(tmp_path / "bare.git"), "yes")
    git(repo, "commit", "--allow-empty", "-m", "second")
    assert facts(repo).pushed == "no"
    git(repo, "config", "branch.main.remote", "backup")
    assert facts(repo).remote == "https://example.org/backup.git"


def test_submodules(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "lib")
    git(repo, "submodule", "add", str(tmp_path / "lib"), "vendored/lib")
    git(repo, "commit", "-m", "with lib")
    commit = git(repo / "vendored/lib", "rev-parse", "HEAD")
    clean = facts(repo)
    assert (clean.submodules, clean.dirty) == ((f"{commit} vendored/lib",), False)
    assert facts(repo / "vendored").submodules == (f"{commit} lib",)
    (repo / "vendored/lib/train.py").write_text("edited")
    edited = facts(repo)
    assert edited.dirty is True
    (repo / "vendored/lib/train.py").write_text("edited otherwise")
    assert facts(repo).diff != edited.diff
    git(repo / "vendored/lib", "commit", "-am", "moved")
    moved = facts(repo)
    assert moved.dirty is True
    assert moved.submodules != clean.submodules
    git(repo, "submodule", "deinit", "--force", "vendored/lib")
    assert facts(repo).submodules == clean.submodules


def test_nothing_is_run_and_nothing_is_written(repo: Path, git: Git, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho run $0 $@ >> {mark}\ncat\n")
    evil.chmod(0o755)
    (repo / ".gitattributes").write_text("*.py filter=evil diff=evil\n*.q filter=proc\n")
    git(repo, "add", ".gitattributes")
    git(repo, "commit", "-m", "attributes")
    for key in ("filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv", "diff.evil.command", "diff.external",
                "core.fsmonitor", "filter.proc.process", "core.pager", "core.sshCommand"):  # fmt: skip
        git(repo, "config", key, str(evil))
    git(repo, "config", "filter.evil.required", "true")
    for name in ("post-index-change", "pre-commit", "fsmonitor-watchman"):
        (repo / ".git" / "hooks").mkdir(exist_ok=True)
        (repo / ".git" / "hooks" / name).write_text(evil.read_text())
        (repo / ".git" / "hooks" / name).chmod(0o755)
    os.utime(repo / "train.py", (1, 1))
    (repo / "x.q").write_text("1")
    before = {path: path.lstat().st_mtime_ns for path in (repo / ".git").rglob("*")}
    mark.unlink(missing_ok=True)
    said = facts(repo)
    assert (said.dirty, said.diff, said.untracked) == (True, None, ("x.q",))
    (repo / "train.py").write_text("print(3)\n")
    assert facts(repo).diff is not None
    asked.ignored(repo)
    assert not mark.exists()
    assert {path: path.lstat().st_mtime_ns for path in (repo / ".git").rglob("*")} == before


def test_the_callers_git_variables_do_not_mislead(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that calls us has them set."""
    plain = facts(repo)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    assert facts(repo) == plain


def test_ignored(repo: Path) -> None:
    (repo / ".gitignore").write_text("*.log\nout/\n!keep.log\n")
    for path in ("a.log", "keep.log", "out/x", "deep/b.log", "deep/c.py", "ü.log"):
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text("")
    assert asked.ignored(repo).paths == {"a.log", "out", "deep/b.log", "ü.log"}
    assert asked.ignored(repo / "deep").paths == {"b.log"}
    assert asked.ignored(repo / "out").paths == frozenset()
