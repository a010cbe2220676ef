"""Git's output is the same for the private copy as for the repository itself, for all supported formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.git.command import GitError, NoRepositoryError, git_output, open_repository
from repro_env.environment.git.repository import look
from tests.environment.conftest import Git


def create(directory: Path, git: Git, *options: str) -> Path:
    directory.mkdir(parents=True)
    git(directory, "init", *options)
    (directory / "code").mkdir()
    (directory / "code" / "a.py").write_text("a = 1\n")
    (directory / ".gitignore").write_text("*.log\n")
    git(directory, "add", ".")
    git(directory, "commit", "-m", "first")
    return directory


def simple(directory: Path, git: Git) -> Path:
    return create(directory / "repo", git)


def packed(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    git(repo, "tag", "-a", "v1", "-m", "tag")
    git(repo, "gc")
    assert not (repo / ".git" / "refs" / "heads" / "main").exists()
    return repo


def with_alternates(directory: Path, git: Git) -> Path:
    create(directory / "original", git)
    git(directory, "clone", "--shared", "original", "middle")
    git(directory, "clone", "--shared", "middle", "repo")
    return directory / "repo"


def sha256(directory: Path, git: Git) -> Path:
    return create(directory / "repo", git, "--object-format=sha256")


def split(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    git(repo, "update-index", "--split-index")
    assert list((repo / ".git").glob("sharedindex.*"))
    return repo


def with_a_symbolic_reference(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    git(repo, "symbolic-ref", "refs/heads/other", "refs/heads/main")
    git(repo, "symbolic-ref", "HEAD", "refs/heads/other")
    return repo


def with_a_worktree_configuration(directory: Path, git: Git) -> Path:
    create(directory / "main", git)
    git(directory / "main", "worktree", "add", str(directory / "repo"), "-b", "side")
    git(directory / "main", "config", "extensions.worktreeConfig", "true")
    git(directory / "main", "config", "core.bare", "true")
    git(directory / "repo", "config", "--worktree", "core.bare", "false")
    return directory / "repo"


def with_user_patterns(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    (repo / ".gitignore").unlink()
    git(repo, "commit", "-am", "no rules")
    (Path.home() / "mine").write_text("*.log\n")
    (Path.home() / "attributes").write_text("*.py text\n")
    git(repo, "config", "--global", "core.excludesFile", "~/mine")
    git(repo, "config", "--global", "core.attributesFile", "~/attributes")
    return repo


def with_default_user_patterns(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    (repo / ".gitignore").unlink()
    git(repo, "commit", "-am", "no rules")
    (Path.home() / ".config" / "git").mkdir(parents=True)
    (Path.home() / ".config" / "git" / "ignore").write_text("*.log\n")
    return repo


def with_converted_line_endings(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    git(repo, "config", "--global", "core.autocrlf", "true")
    (repo / "code" / "a.py").write_bytes(b"a = 1\r\n")
    return repo


def with_ignored_modes(directory: Path, git: Git) -> Path:
    repo = create(directory / "repo", git)
    git(repo, "config", "core.fileMode", "false")
    (repo / "code" / "a.py").chmod(0o755)
    return repo


def with_a_long_path(directory: Path, git: Git) -> Path:
    return create(directory / 'od:d "quoted" \\ ünï\nline' / "repo", git)


FORMS = [
    simple, packed, with_alternates, sha256, split, with_a_symbolic_reference, with_a_worktree_configuration,
    with_user_patterns, with_default_user_patterns, with_converted_line_endings, with_ignored_modes, with_a_long_path,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_facts_match_git(tmp_path: Path, git: Git, form: Callable[[Path, Git], Path]) -> None:
    repo = form(tmp_path / "parent", git)
    (repo / "x.log").write_text("")
    clean = look(repo)
    assert clean.problem == ""
    assert clean.git is not None
    assert (clean.git.dirty, clean.git.untracked) == (git(repo, "status", "--porcelain", "--untracked-files=no") != "", ())
    assert clean.git.commit == git(repo, "rev-parse", "HEAD")
    assert clean.git.branch == git(repo, "symbolic-ref", "--short", "HEAD")
    assert clean.ignored == {"x.log"}
    (repo / "code" / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("")
    edited = look(repo / "code").git
    assert edited is not None
    assert (edited.dirty, edited.untracked, look(repo).git) == (True, (), msgspec.structs.replace(edited, untracked=("new.py",)))


def test_references_match_git(tmp_path: Path, git: Git) -> None:
    repo = packed(tmp_path, git)
    git(repo, "branch", "deep/branch")
    git(repo, "commit", "--allow-empty", "-m", "second")
    git(repo, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    command = ("for-each-ref", "--format=%(refname) %(objectname) %(*objectname)")
    with open_repository(repo) as opened_repo:
        assert git_output(opened_repo, *command).decode().strip() == git(repo, *command)
        assert git_output(opened_repo, "rev-list", "--all").decode().strip() == git(repo, "rev-list", "--all")


@pytest.mark.parametrize("text", ["gitdir: gone\n", "what\n", "gitdir: \0\n"])
def test_a_gitfile_that_does_not_name_a_repository_is_a_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").write_text(text)
    with pytest.raises(NoRepositoryError, match="does not name a repository"), open_repository(tmp_path):
        pass
    assert "does not name a repository" in look(tmp_path).problem


def test_git_leaves_no_temporary_files_and_writes_no_objects(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = simple(tmp_path, git)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = sorted((repo / ".git").rglob("*"))
    (repo / "code" / "a.py").write_text("a = 2\n")
    with open_repository(repo) as opened_repo:
        assert list(scratch.iterdir()) == [opened_repo.private]
        assert opened_repo.private.stat().st_mode & 0o77 == 0
        with pytest.raises(GitError, match="is not a git command"):
            git_output(opened_repo, "no-such-command")
    assert look(repo).git is not None
    assert not list(scratch.iterdir())
    assert sorted((repo / ".git").rglob("*")) == before
