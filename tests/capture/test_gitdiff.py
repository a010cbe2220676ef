"""Commit + diff + untracked files are the source again: tried on a fresh clone, against the snapshot."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.capture import gitdiff
from repro_env.capture.gitask import opened
from repro_env.capture.source import look
from tests.capture.conftest import Git

Tree = dict[str, tuple[str, bool, bytes]]


@pytest.fixture
def repo(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "repo"
    (folder / "pkg").mkdir(parents=True)
    git(folder, "init")
    (folder / "train.py").write_text("print(1)\nprint(2)\n")
    (folder / "pkg" / "a.py").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "dos.txt").write_bytes(b"a\r\nb\r\n")
    (folder / "no newline").write_text("x")
    (folder / "data.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "link").symlink_to("train.py")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def snapshot(root: Path) -> Tree:
    """Files and symlinks of the snapshot; git keeps no empty folders."""
    return {
        one.path: (one.kind, one.executable, one.target.encode() if one.kind == "link" else (root / one.path).read_bytes())
        for one in look(root).found
        if one.kind != "dir"
    }


def restored(repo: Path, git: Git, folder: Path, *options: str) -> Tree:
    """A clone with diff and untracked files put on top; the diff is the one whose digest the facts hold."""
    tree = look(repo)
    assert tree.git is not None
    scratch = folder / "scratch"
    scratch.mkdir()
    with opened(repo) as there:
        gitdiff.write(there, tree.git.commit, gitdiff.index_of(there), scratch / "diff")
    digest = "sha256:" + hashlib.sha256((scratch / "diff").read_bytes()).hexdigest()
    assert tree.git.diff == (digest if (scratch / "diff").stat().st_size else None)
    clone = folder / "clone"
    if tree.git.commit:
        git(folder, *options, "clone", "--quiet", str(repo), str(clone))
        git(clone, *options, "checkout", "--quiet", tree.git.commit)
    else:
        git(folder, "init", "clone")
    if tree.git.diff:
        git(clone, *options, "apply", "--binary", str(scratch / "diff"))
    for path in tree.git.untracked:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        if (repo / path).is_dir():
            shutil.copytree(repo / path, clone / path, symlinks=True)
        else:
            shutil.copy2(repo / path, clone / path, follow_symlinks=False)
    return snapshot(clone)


def edited(repo: Path) -> None:
    (repo / "train.py").write_text("print(1)\nprint(3)\n")


def staged_and_then_other(repo: Path) -> None:
    (repo / "train.py").write_text("staged\n")
    subprocess.run(["git", "-C", repo, "add", "."], check=True)
    (repo / "train.py").write_text("on disk\n")


def modes(repo: Path) -> None:
    (repo / "run.sh").chmod(0o755)
    (repo / "pkg" / "a.py").chmod(0o700)


def symlinks(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").symlink_to("pkg")
    (repo / "train.py").unlink()
    (repo / "train.py").symlink_to("/nowhere")
    (repo / "new link").symlink_to("ünï")


def a_symlink_became_a_file(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").write_text("now a file\n")


def line_ends(repo: Path) -> None:
    (repo / "dos.txt").write_bytes(b"a\r\nc\r\n")
    (repo / "train.py").write_bytes(b"print(1)\r\nprint(2)\r\n")


def binary(repo: Path) -> None:
    (repo / "data.bin").write_bytes(bytes(range(255, -1, -1)) * 20)
    (repo / "no newline").write_bytes(b"\0\0")


def deleted(repo: Path) -> None:
    (repo / "data.bin").unlink()
    shutil.rmtree(repo / "pkg")
    (repo / "no newline").write_text("")


def a_folder_took_the_place_of_a_file(repo: Path) -> None:
    (repo / "train.py").unlink()
    (repo / "train.py").mkdir()
    (repo / "train.py" / "b.py").write_text("1\n")


def untracked(repo: Path) -> None:
    (repo / "new.py").write_text("1\n")
    (repo / "deep" / "er").mkdir(parents=True)
    (repo / "deep" / "er" / "tool").write_text("")
    (repo / "deep" / "er" / "tool").chmod(0o755)
    (repo / "a.log").write_text("ignored")


def added_renamed_and_removed_from_the_index(repo: Path) -> None:
    (repo / "new.py").write_text("1\n")
    for words in (["add", "new.py"], ["mv", "train.py", "moved.py"], ["rm", "--cached", "--quiet", "dos.txt"]):
        subprocess.run(["git", "-C", repo, *words], check=True)


def only_said_to_be_added(repo: Path) -> None:
    (repo / "later.py").write_text("1\n")
    subprocess.run(["git", "-C", repo, "add", "-N", "later.py"], check=True)


def hidden_from_git(repo: Path) -> None:
    subprocess.run(["git", "-C", repo, "update-index", "--assume-unchanged", "train.py"], check=True)
    subprocess.run(["git", "-C", repo, "update-index", "--skip-worktree", "data.bin"], check=True)
    edited(repo)
    binary(repo)


def nothing(repo: Path) -> None:
    os.utime(repo / "train.py", (1, 1))


@pytest.mark.parametrize(
    "edit",
    [edited, staged_and_then_other, modes, symlinks, a_symlink_became_a_file, line_ends, binary, deleted,
     a_folder_took_the_place_of_a_file, untracked, added_renamed_and_removed_from_the_index, only_said_to_be_added,
     hidden_from_git, nothing],
)  # fmt: skip
def test_a_clone_becomes_the_source(repo: Path, git: Git, tmp_path: Path, edit: Callable[[Path], None]) -> None:
    before = snapshot(repo)
    edit(repo)
    assert (snapshot(repo) == before) is (edit is nothing)
    assert restored(repo, git, tmp_path) == snapshot(repo)


def test_of_an_unborn_branch(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "repo")
    (tmp_path / "repo" / "added.py").write_text("1\n")
    git(tmp_path / "repo", "add", ".")
    (tmp_path / "repo" / "new.py").write_text("2\n")
    assert restored(tmp_path / "repo", git, tmp_path) == snapshot(tmp_path / "repo")


@pytest.mark.parametrize("conflict", ["edit", "delete", "add"])
def test_in_the_middle_of_a_merge(repo: Path, git: Git, tmp_path: Path, conflict: str) -> None:
    git(repo, "checkout", "-b", "side")
    (repo / ("other.py" if conflict == "add" else "train.py")).write_text("side\n")
    (repo / "quiet.py").write_text("merged without a word\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "side")
    git(repo, "checkout", "main")
    if conflict == "delete":
        git(repo, "rm", "train.py")
    else:
        (repo / ("other.py" if conflict == "add" else "train.py")).write_text("main\n")
        git(repo, "add", ".")
    git(repo, "commit", "-m", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "side")
    assert restored(repo, git, tmp_path) == snapshot(repo)


def test_with_line_ends_converted_a_clone_needs_the_same_setting(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    for name in ("train.py", "run.sh"):
        (repo / name).unlink()
    git(repo, "checkout", ".")
    assert (repo / "train.py").read_bytes() == b"print(1)\r\nprint(2)\r\n"
    (repo / "run.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")
    same, other = tmp_path / "same", tmp_path / "other"
    same.mkdir()
    other.mkdir()
    ours = snapshot(repo)
    # As long as git has not touched them, files are on disk as they were written.
    theirs = restored(repo, git, same, "-c", "core.autocrlf=true")
    assert {path: theirs[path] for path in ("train.py", "run.sh")} == {path: ours[path] for path in ("train.py", "run.sh")}
    assert restored(repo, git, other)["train.py"] != ours["train.py"]  # the limit, and why the snapshot holds the files


def test_attributes_for_line_ends_come_with_the_commit(repo: Path, git: Git, tmp_path: Path) -> None:
    (repo / ".gitattributes").write_text("*.txt text eol=crlf\n*.py text eol=lf\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "attributes")
    (repo / "dos.txt").write_bytes(b"a\r\nc\r\n")
    assert restored(repo, git, tmp_path) == snapshot(repo)


def test_of_a_submodule_only_its_commit_is_in_the_diff(repo: Path, git: Git, tmp_path: Path) -> None:
    """The limit: edits inside of it count for the digest, and are no part of the outer diff."""
    git(tmp_path, "clone", str(repo), "lib")
    git(repo, "submodule", "add", str(tmp_path / "lib"), "vendored")
    git(repo, "commit", "-m", "with lib")
    clean = look(repo).git
    (repo / "vendored" / "train.py").write_text("edited\n")
    edited = look(repo).git
    assert clean is not None
    assert edited is not None
    assert (clean.diff, edited.diff is None) == (None, False)
    with opened(repo) as there:
        gitdiff.write(there, edited.commit, gitdiff.index_of(there), tmp_path / "outer")
    assert (tmp_path / "outer").read_bytes() == b""
    inner = tmp_path / "inner"
    inner.mkdir()
    assert restored(repo / "vendored", git, inner) == snapshot(repo / "vendored")


def test_the_repository_is_left_as_it_was(repo: Path) -> None:
    hidden_from_git(repo)
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (repo / ".git").rglob("*")}
    look(repo)
    assert {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (repo / ".git").rglob("*")} == before
