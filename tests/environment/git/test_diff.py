"""Commit, diff and untracked files together restore the source: a fresh clone becomes equal to the snapshot."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.git import diff
from repro_env.environment.git.command import open_repository
from repro_env.environment.source.selection import look
from tests.environment.conftest import Git

Tree = dict[str, tuple[str, bool, bytes]]


@pytest.fixture
def repo(tmp_path: Path, git: Git) -> Path:
    directory = tmp_path / "repo"
    (directory / "pkg").mkdir(parents=True)
    git(directory, "init")
    (directory / "train.py").write_text("print(1)\nprint(2)\n")
    (directory / "pkg" / "a.py").write_text("")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "dos.txt").write_bytes(b"a\r\nb\r\n")
    (directory / "no newline").write_text("x")
    (directory / "data.bin").write_bytes(bytes(range(256)) * 10)
    (directory / "link").symlink_to("train.py")
    (directory / ".gitignore").write_text("*.log\n")
    git(directory, "add", ".")
    git(directory, "commit", "-m", "first")
    return directory


def snapshot(root: Path) -> Tree:
    """Return the files and symlinks of the snapshot. Git does not store empty directories."""
    return {
        entry.path: (
            entry.kind,
            entry.executable,
            entry.target.encode() if entry.kind == "link" else (root / entry.path).read_bytes(),
        )
        for entry in look(root).found
        if entry.kind != "dir"
    }


def restore(repo: Path, git: Git, directory: Path, *options: str) -> Tree:
    """Return the tree of a clone after applying the diff, whose digest is in the facts, and adding the untracked files."""
    tree = look(repo)
    assert tree.git is not None
    scratch = directory / "scratch"
    scratch.mkdir()
    with open_repository(repo) as opened_repo:
        diff.write(opened_repo, tree.git.commit, diff.index_of(opened_repo), scratch / "diff")
    digest = "sha256:" + hashlib.sha256((scratch / "diff").read_bytes()).hexdigest()
    assert tree.git.diff == (digest if (scratch / "diff").stat().st_size else None)
    clone = directory / "clone"
    if tree.git.commit:
        git(directory, *options, "clone", "--quiet", str(repo), str(clone))
        git(clone, *options, "checkout", "--quiet", tree.git.commit)
    else:
        git(directory, "init", "clone")
    if tree.git.diff:
        git(clone, *options, "apply", "--binary", str(scratch / "diff"))
    for path in tree.git.untracked:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        if (repo / path).is_dir():
            shutil.copytree(repo / path, clone / path, symlinks=True)
        else:
            shutil.copy2(repo / path, clone / path, follow_symlinks=False)
    return snapshot(clone)


def edit_file(repo: Path) -> None:
    (repo / "train.py").write_text("print(1)\nprint(3)\n")


def stage_then_edit(repo: Path) -> None:
    (repo / "train.py").write_text("staged\n")
    subprocess.run(["git", "-C", repo, "add", "."], check=True)
    (repo / "train.py").write_text("on disk\n")


def change_modes(repo: Path) -> None:
    (repo / "run.sh").chmod(0o755)
    (repo / "pkg" / "a.py").chmod(0o700)


def change_symlinks(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").symlink_to("pkg")
    (repo / "train.py").unlink()
    (repo / "train.py").symlink_to("/nowhere")
    (repo / "new link").symlink_to("ünï")


def replace_symlink_by_file(repo: Path) -> None:
    (repo / "link").unlink()
    (repo / "link").write_text("now a file\n")


def change_line_endings(repo: Path) -> None:
    (repo / "dos.txt").write_bytes(b"a\r\nc\r\n")
    (repo / "train.py").write_bytes(b"print(1)\r\nprint(2)\r\n")


def change_binary_file(repo: Path) -> None:
    (repo / "data.bin").write_bytes(bytes(range(255, -1, -1)) * 20)
    (repo / "no newline").write_bytes(b"\0\0")


def delete_files(repo: Path) -> None:
    (repo / "data.bin").unlink()
    shutil.rmtree(repo / "pkg")
    (repo / "no newline").write_text("")


def replace_file_by_directory(repo: Path) -> None:
    (repo / "train.py").unlink()
    (repo / "train.py").mkdir()
    (repo / "train.py" / "b.py").write_text("1\n")


def add_untracked_files(repo: Path) -> None:
    (repo / "new.py").write_text("1\n")
    (repo / "deep" / "er").mkdir(parents=True)
    (repo / "deep" / "er" / "tool").write_text("")
    (repo / "deep" / "er" / "tool").chmod(0o755)
    (repo / "a.log").write_text("ignored")


def change_index(repo: Path) -> None:
    (repo / "new.py").write_text("1\n")
    for command in (["add", "new.py"], ["mv", "train.py", "moved.py"], ["rm", "--cached", "--quiet", "dos.txt"]):
        subprocess.run(["git", "-C", repo, *command], check=True)


def add_with_intent_to_add(repo: Path) -> None:
    (repo / "later.py").write_text("1\n")
    subprocess.run(["git", "-C", repo, "add", "-N", "later.py"], check=True)


def edit_hidden_files(repo: Path) -> None:
    subprocess.run(["git", "-C", repo, "update-index", "--assume-unchanged", "train.py"], check=True)
    subprocess.run(["git", "-C", repo, "update-index", "--skip-worktree", "data.bin"], check=True)
    edit_file(repo)
    change_binary_file(repo)


def change_time(repo: Path) -> None:
    os.utime(repo / "train.py", (1, 1))


@pytest.mark.parametrize(
    "edit",
    [edit_file, stage_then_edit, change_modes, change_symlinks, replace_symlink_by_file, change_line_endings, change_binary_file, delete_files,
     replace_file_by_directory, add_untracked_files, change_index, add_with_intent_to_add,
     edit_hidden_files, change_time],
)  # fmt: skip
def test_a_clone_is_restored_to_the_source(repo: Path, git: Git, tmp_path: Path, edit: Callable[[Path], None]) -> None:
    before = snapshot(repo)
    edit(repo)
    assert (snapshot(repo) == before) is (edit is change_time)
    assert restore(repo, git, tmp_path) == snapshot(repo)


def test_an_unborn_branch_is_restored(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "repo")
    (tmp_path / "repo" / "added.py").write_text("1\n")
    git(tmp_path / "repo", "add", ".")
    (tmp_path / "repo" / "new.py").write_text("2\n")
    assert restore(tmp_path / "repo", git, tmp_path) == snapshot(tmp_path / "repo")


@pytest.mark.parametrize("conflict", ["edit", "delete", "add"])
def test_the_middle_of_a_merge_is_restored(repo: Path, git: Git, tmp_path: Path, conflict: str) -> None:
    git(repo, "checkout", "-b", "side")
    (repo / ("other.py" if conflict == "add" else "train.py")).write_text("side\n")
    (repo / "quiet.py").write_text("merged without a conflict\n")
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
    assert restore(repo, git, tmp_path) == snapshot(repo)


def test_a_clone_with_converted_line_endings_needs_the_same_setting(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    for name in ("train.py", "run.sh"):
        (repo / name).unlink()
    git(repo, "checkout", ".")
    assert (repo / "train.py").read_bytes() == b"print(1)\r\nprint(2)\r\n"
    (repo / "run.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")
    same, other = tmp_path / "same", tmp_path / "other"
    same.mkdir()
    other.mkdir()
    original = snapshot(repo)
    # Other files may differ: until git writes them, they have the line endings they were written with.
    clone = restore(repo, git, same, "-c", "core.autocrlf=true")
    assert {path: clone[path] for path in ("train.py", "run.sh")} == {path: original[path] for path in ("train.py", "run.sh")}
    assert restore(repo, git, other)["train.py"] != original["train.py"]  # therefore the snapshot contains the files


def test_line_endings_set_by_attributes_are_restored(repo: Path, git: Git, tmp_path: Path) -> None:
    (repo / ".gitattributes").write_text("*.txt text eol=crlf\n*.py text eol=lf\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "attributes")
    (repo / "dos.txt").write_bytes(b"a\r\nc\r\n")
    assert restore(repo, git, tmp_path) == snapshot(repo)


def test_the_diff_contains_only_the_commit_of_a_submodule(repo: Path, git: Git, tmp_path: Path) -> None:
    """Edits in a submodule change the digest, but are not part of the outer diff."""
    git(tmp_path, "clone", str(repo), "lib")
    git(repo, "submodule", "add", str(tmp_path / "lib"), "vendored")
    git(repo, "commit", "-m", "with lib")
    clean = look(repo).git
    (repo / "vendored" / "train.py").write_text("edited\n")
    edited = look(repo).git
    assert clean is not None
    assert edited is not None
    assert (clean.diff, edited.diff is None) == (None, False)
    with open_repository(repo) as opened_repo:
        diff.write(opened_repo, edited.commit, diff.index_of(opened_repo), tmp_path / "outer")
    assert (tmp_path / "outer").read_bytes() == b""
    inner = tmp_path / "inner"
    inner.mkdir()
    assert restore(repo / "vendored", git, inner) == snapshot(repo / "vendored")


def test_the_repository_is_not_modified(repo: Path) -> None:
    edit_hidden_files(repo)
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (repo / ".git").rglob("*")}
    look(repo)
    assert {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (repo / ".git").rglob("*")} == before
