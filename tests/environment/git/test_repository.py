"""Facts about real git repositories, which are read without running programs of the repository."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from repro_env.environment.git import command
from repro_env.environment.git.repository import Answer, ignores, look
from repro_env.schema.environment import Git as Facts
from tests.environment.conftest import Git
from tests.parts import need


def facts(root: Path, *never: Path) -> Facts:
    answer = look(root, never=never)
    assert answer.problem == ""
    assert answer.git is not None
    return answer.git


@pytest.fixture
def repo(tmp_path: Path, git: Git) -> Path:
    directory = tmp_path / "repo"
    directory.mkdir()
    git(directory, "init")
    (directory / "train.py").write_text("print(1)\n")
    git(directory, "add", ".")
    git(directory, "commit", "-m", "first")
    return directory


def test_facts_of_a_clean_repository(repo: Path, git: Git) -> None:
    committed = datetime.fromtimestamp(int(git(repo, "log", "-1", "--format=%ct")), timezone.utc)
    assert facts(repo) == Facts(
        commit=git(repo, "rev-parse", "HEAD"),
        date=f"{committed:%Y-%m-%dT%H:%M:%SZ}",
        branch="main",
        remote="",
        dirty=False,
        untracked=(),
    )


def test_a_directory_outside_a_repository_has_no_facts(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()  # git too ignores an empty directory
    assert look(tmp_path) == Answer()
    assert ignores(tmp_path, ["a"]) == frozenset()


def test_changes_of_tracked_files_and_untracked_files_are_reported(repo: Path, git: Git) -> None:
    (repo / "train.py").write_text("print(2)\n")
    (repo / "ünï new.py").write_text("")
    assert (facts(repo).dirty, facts(repo).untracked) == (True, ("ünï new.py",))
    git(repo, "add", ".")
    assert (facts(repo).dirty, facts(repo).untracked) == (True, ())
    git(repo, "reset", "--hard")
    git(repo, "mv", "train.py", "moved.py")
    assert facts(repo).dirty


def test_changes_in_excluded_directories_do_not_count(repo: Path, git: Git) -> None:
    (repo / "out").mkdir()
    (repo / "out" / "spec.json").write_text("1")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "output too")
    (repo / "out" / "spec.json").write_text("2")
    (repo / "out" / "new.json").write_text("2")
    assert facts(repo).dirty
    clean = facts(repo, repo / "out", repo.parent / "away")
    assert (clean.dirty, clean.untracked) == (False, ())


def test_changes_outside_the_directory_do_not_count(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "new.py").write_text("")
    (repo / "train.py").write_text("edited")
    assert (facts(repo / "sub").dirty, facts(repo / "sub").untracked) == (False, ("new.py",))


def test_a_repository_without_a_commit_has_no_facts_but_ignored_paths(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "fresh")
    (tmp_path / "fresh" / ".gitignore").write_text("*.log\n")
    (tmp_path / "fresh" / "a.log").write_text("")
    answer = look(tmp_path / "fresh")
    assert answer.git is None
    assert answer.ignored == {"a.log"}
    assert "HEAD names no commit that git can read" in answer.problem


def test_facts_of_a_worktree_and_a_detached_head(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    assert facts(tmp_path / "tree").branch == "side"
    git(tmp_path / "tree", "checkout", "--detach")
    assert facts(tmp_path / "tree").branch == ""
    assert facts(tmp_path / "tree").commit == facts(repo).commit


def test_the_remote_is_that_of_the_branch_or_origin_or_the_first(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "remote", "add", "backup", "https://ann:secret@example.org/backup.git")
    assert facts(repo).remote == "https://example.org/backup.git"
    git(repo, "remote", "add", "origin", str(tmp_path / "bare.git"))
    assert facts(repo).remote == str(tmp_path / "bare.git")
    git(repo, "config", "branch.main.remote", "backup")
    assert facts(repo).remote == "https://example.org/backup.git"


def test_of_a_submodule_only_the_commit_counts(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "lib")
    git(repo, "submodule", "add", str(tmp_path / "lib"), "vendored/lib")
    git(repo, "commit", "-m", "with lib")
    assert not facts(repo).dirty
    (repo / "vendored/lib/train.py").write_text("edited")
    assert (facts(repo).dirty, facts(repo / "vendored/lib").dirty) == (False, True)
    git(repo / "vendored/lib", "commit", "-am", "moved")
    assert facts(repo).dirty


def test_no_program_is_run_and_nothing_is_written(repo: Path, git: Git, tmp_path: Path) -> None:
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
    found = facts(repo)
    assert (found.dirty, found.untracked) == (False, ("x.q",))
    (repo / "train.py").write_text("print(3)\n")
    assert facts(repo).dirty
    assert ignores(repo, ["train.py"]) == frozenset()
    assert not mark.exists()
    assert {path: path.lstat().st_mtime_ns for path in (repo / ".git").rglob("*")} == before


def test_git_variables_of_the_caller_are_ignored(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These variables are set in a git hook."""
    plain = facts(repo)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    assert facts(repo) == plain


def test_lists_ignored_paths(repo: Path) -> None:
    (repo / ".gitignore").write_text("*.log\nout/\n!keep.log\n")
    for path in ("a.log", "keep.log", "out/x", "deep/b.log", "deep/c.py", "ü.log", "all/x.log"):
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text("")
    assert look(repo).ignored == {"a.log", "out", "deep/b.log", "ü.log", "all/x.log"}
    assert look(repo / "deep").ignored == {"b.log"}
    assert look(repo / "out") == Answer(), "the directory itself is ignored"
    assert ignores(repo, ["gone.log", "gone.py", "out/gone"]) == {"gone.log", "out/gone"}
    assert ignores(repo / "out", ["gone.log"]) == frozenset()


def test_a_linked_worktree_with_and_without_its_repository(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    (tmp_path / "tree" / "train.py").write_text("print(2)\n")
    assert (facts(tmp_path / "tree").dirty, facts(repo).dirty) == (True, False)
    git(tmp_path, "clone", f"--separate-git-dir={tmp_path / 'store.git'}", str(repo), "apart")
    assert (tmp_path / "apart" / ".git").is_file()
    assert facts(tmp_path / "apart").remote == str(repo)
    repo.rename(tmp_path / "moved")
    assert look(tmp_path / "tree").git is None
    assert "does not name a repository" in look(tmp_path / "tree").problem


def test_a_sparse_checkout_is_not_dirty(repo: Path, git: Git) -> None:
    for directory in ("code", "data"):
        (repo / directory).mkdir()
        (repo / directory / "a.txt").write_text("")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "more")
    git(repo, "sparse-checkout", "set", "code")
    assert not facts(repo).dirty


POINTER = "version https://" + "git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


def lfs(repo: Path, git: Git, path: str, content: bytes) -> None:
    """Commit a file like git-lfs: the commit has the pointer, the disk has the content, and the index is up to date."""
    pointer = POINTER.format(hashlib.sha256(content).hexdigest(), len(content))
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / path).write_text(pointer)
    git(repo, "add", ".")
    git(repo, "commit", "-m", path)
    (repo / path).write_bytes(content)


def test_lfs_content_on_disk_is_not_dirty(repo: Path, git: Git) -> None:
    """This does not depend on the file's timestamp or on git-lfs."""
    lfs(repo, git, "weights.bin", b"weights")
    for key in ("clean", "smudge", "process"):
        git(repo, "config", f"filter.lfs.{key}", "/bin/false")
    git(repo, "config", "filter.lfs.required", "true")
    os.utime(repo / "weights.bin", (1, 1))
    assert facts(repo).dirty is False
    (repo / "weights.bin").write_bytes(b"WEIGHTS")
    assert facts(repo).dirty is True
    (repo / "weights.bin").unlink()
    assert facts(repo).dirty is True


def test_a_repository_of_another_user_is_refused_unless_it_is_trusted(
    repo: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(os.getuid() == 0, "only uid 0 can give files to another user")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    assert look(repo).git is None
    assert f"git config --global --add safe.directory {repo}" in look(repo).problem
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(repo))
    assert facts(repo).commit != ""
    monkeypatch.delenv("GIT_CONFIG_COUNT")
    assert look(repo).git is None
    git(repo, "config", "--global", "--add", "safe.directory", str(repo))
    assert facts(repo).commit != ""


def test_a_partial_clone_fetches_nothing(repo: Path, git: Git, tmp_path: Path) -> None:
    """Its configuration could name any program as the remote."""
    mark, evil = tmp_path / "mark", tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho ran >> {mark}\n")
    evil.chmod(0o755)
    blob = git(repo, "rev-parse", "HEAD:train.py")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (repo / "train.py").write_text("edited\n")
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{evil}",
        "remote.origin.uploadpack": str(evil),
        "core.sshCommand": str(evil),
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
    }.items():
        git(repo, "config", key, value)
    environment = {**command._ENVIRONMENT, "GIT_NO_LAZY_FETCH": "0"}  # older versions of git ignore this variable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_ENVIRONMENT", environment)
        answer = look(repo)
        with command.open_repository(repo) as opened_repo, pytest.raises(command.GitError, match="in a partial clone"):
            command.git_output(opened_repo, "diff", "HEAD")
    assert not mark.exists()
    assert answer.git is not None
    assert answer.git.dirty is True


def test_a_working_tree_in_a_different_directory_is_refused(repo: Path, git: Git, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git(repo, "config", "core.worktree", str(tmp_path / "elsewhere"))
    assert look(repo).git is None
    assert "sets a different working tree" in look(repo).problem


def test_without_git_the_problem_says_so(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert look(repo) == Answer(problem="the git repository cannot be read: git is not installed or not on PATH")


def test_a_symlink_to_a_directory_of_a_repository_has_its_facts(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "new.py").write_text("")
    (tmp_path / "link").symlink_to(repo / "sub")
    assert facts(tmp_path / "link") == facts(repo / "sub")
    assert facts(tmp_path / "link").untracked == ("new.py",)
