"""Git gives the same answers on its private copy as in the repository, whatever the repository's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.capture import git as asked
from repro_env.capture.gitask import GitError, NoRepositoryError, ask, opened
from tests.capture.conftest import Git


def filled(folder: Path, git: Git, *options: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", *options)
    (folder / "code").mkdir()
    (folder / "code" / "a.py").write_text("a = 1\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def plain(folder: Path, git: Git) -> Path:
    return filled(folder / "repo", git)


def packed(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    git(repo, "tag", "-a", "v1", "-m", "tag")
    git(repo, "gc")
    assert not (repo / ".git" / "refs" / "heads" / "main").exists()
    return repo


def borrowing(folder: Path, git: Git) -> Path:
    filled(folder / "lender", git)
    git(folder, "clone", "--shared", "lender", "middle")
    git(folder, "clone", "--shared", "middle", "repo")
    return folder / "repo"


def sha256(folder: Path, git: Git) -> Path:
    return filled(folder / "repo", git, "--object-format=sha256")


def split(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    git(repo, "update-index", "--split-index")
    assert list((repo / ".git").glob("sharedindex.*"))
    return repo


def with_a_symlink_as_head(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    (repo / ".git" / "HEAD").unlink()
    (repo / ".git" / "HEAD").symlink_to("refs/heads/main")
    return repo


def with_a_symbolic_reference(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    git(repo, "symbolic-ref", "refs/heads/other", "refs/heads/main")
    git(repo, "symbolic-ref", "HEAD", "refs/heads/other")
    return repo


def with_a_configuration_of_the_tree(folder: Path, git: Git) -> Path:
    filled(folder / "main", git)
    git(folder / "main", "worktree", "add", str(folder / "repo"), "-b", "side")
    git(folder / "main", "config", "extensions.worktreeConfig", "true")
    git(folder / "main", "config", "core.bare", "true")
    git(folder / "repo", "config", "--worktree", "core.bare", "false")
    return folder / "repo"


def with_the_users_patterns(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    (repo / ".gitignore").unlink()
    git(repo, "commit", "-am", "no rules")
    (Path.home() / "mine").write_text("*.log\n")
    (Path.home() / "attributes").write_text("*.py text\n")
    git(repo, "config", "--global", "core.excludesFile", "~/mine")
    git(repo, "config", "--global", "core.attributesFile", "~/attributes")
    return repo


def with_the_users_default_patterns(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    (repo / ".gitignore").unlink()
    git(repo, "commit", "-am", "no rules")
    (Path.home() / ".config" / "git").mkdir(parents=True)
    (Path.home() / ".config" / "git" / "ignore").write_text("*.log\n")
    return repo


def with_line_ends_converted(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    git(repo, "config", "--global", "core.autocrlf", "true")
    (repo / "code" / "a.py").write_bytes(b"a = 1\r\n")
    return repo


def without_modes(folder: Path, git: Git) -> Path:
    repo = filled(folder / "repo", git)
    git(repo, "config", "core.fileMode", "false")
    (repo / "code" / "a.py").chmod(0o755)
    return repo


def with_a_long_path(folder: Path, git: Git) -> Path:
    return filled(folder / 'od:d "quoted" \\ ünï\nline' / "repo", git)


FORMS = [
    plain, packed, borrowing, sha256, split, with_a_symlink_as_head, with_a_symbolic_reference, with_a_configuration_of_the_tree,
    with_the_users_patterns, with_the_users_default_patterns, with_line_ends_converted, without_modes, with_a_long_path,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_facts_match_git(tmp_path: Path, git: Git, form: Callable[[Path, Git], Path]) -> None:
    repo = form(tmp_path / "made", git)
    (repo / "x.log").write_text("")
    clean = asked.look(repo)
    assert clean.problems == ()
    assert clean.git is not None
    assert (clean.git.dirty, clean.git.untracked, git(repo, "diff", "HEAD")) == (False, (), "")
    assert clean.git.commit == git(repo, "rev-parse", "HEAD")
    assert clean.git.branch == git(repo, "symbolic-ref", "--short", "HEAD")
    assert asked.ignored(repo).paths == {"x.log"}
    (repo / "code" / "a.py").write_text("a = 2\n")
    (repo / "new.py").write_text("")
    edited = asked.look(repo / "code").git
    assert edited is not None
    assert (edited.dirty, edited.untracked, asked.look(repo).git) == (True, (), edited.__replace__(untracked=("new.py",)))


def test_references_match_git(tmp_path: Path, git: Git) -> None:
    repo = packed(tmp_path, git)
    git(repo, "branch", "deep/branch")
    git(repo, "commit", "--allow-empty", "-m", "second")
    git(repo, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(repo, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    words = ("for-each-ref", "--format=%(refname) %(objectname) %(*objectname)")
    with opened(repo) as there:
        assert ask(there, *words).decode().strip() == git(repo, *words)
        assert ask(there, "rev-list", "--all").decode().strip() == git(repo, "rev-list", "--all")


def test_a_search_ends_where_the_user_says(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = plain(tmp_path, git)
    with opened(repo / "code") as there:
        assert there.top == repo
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", f"/nowhere:{repo}")
    with pytest.raises(NoRepositoryError, match="not a git repository"), opened(repo / "code"):
        pass
    with opened(repo) as there:
        assert there.top == repo


def test_a_gitfile_that_names_no_repository_is_reported(tmp_path: Path, git: Git) -> None:
    for text, said in (("gitdir: gone\n", "not a git repository"), ("what\n", "invalid gitfile format")):
        (tmp_path / ".git").write_text(text)
        with pytest.raises(NoRepositoryError, match=said), opened(tmp_path):
            pass
    assert "is not a git" not in asked.look(tmp_path).problems[0]


def test_git_leaves_no_temporary_files_and_writes_no_object(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = plain(tmp_path, git)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = sorted((repo / ".git").rglob("*"))
    (repo / "code" / "a.py").write_text("a = 2\n")
    with opened(repo) as there:
        assert list(scratch.iterdir()) == [there.private]
        assert there.private.stat().st_mode & 0o77 == 0
        with pytest.raises(GitError, match="is not a git command"):
            ask(there, "no-such-command")
    assert asked.look(repo).git is not None
    assert not list(scratch.iterdir())
    assert sorted((repo / ".git").rglob("*")) == before
