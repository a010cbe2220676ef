from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.environment.git import history
from repro_env.environment.git.command import GitError, Repo, open_repository
from tests.environment.conftest import Git


@pytest.fixture
def repo(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with two commits, an hour apart, and a directory `code`."""
    directory = tmp_path / "repo"
    (directory / "code" / "pkg").mkdir(parents=True)
    git(directory, "init")
    for hour, text in ((1, "one\n"), (2, "two\n")):
        (directory / "code" / "pkg" / "a b.py").write_text(text)
        (directory / "code" / "run.sh").write_text("#!/bin/sh\n")
        (directory / "code" / "run.sh").chmod(0o755)
        (directory / "outside").write_text("x")
        if hour == 1:
            (directory / "code" / "link").symlink_to("pkg/a b.py")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-07-01T0{hour}:00:00Z")
        git(directory, "add", ".")
        git(directory, "commit", "-m", f"{hour}")
    return directory


def test_reads_the_files_of_a_commit_and_their_contents(repo: Path, git: Git) -> None:
    commit = git(repo, "rev-parse", "HEAD~1")
    with open_repository(repo / "code") as code:
        blobs = {blob.path: blob for blob in history.files(code, commit)}
        data = history.contents(code, [blob.name for blob in blobs.values()])
        assert history.contents(code, []) == {}
    assert {path: blob.mode for path, blob in blobs.items()} == {"link": "120000", "pkg/a b.py": "100644", "run.sh": "100755"}
    assert {path: data[blob.name] for path, blob in blobs.items()} == {
        "link": b"pkg/a b.py",
        "pkg/a b.py": b"one\n",
        "run.sh": b"#!/bin/sh\n",
    }
    assert all(len(data[blob.name]) == blob.size for blob in blobs.values())


@pytest.fixture
def opened_repo(repo: Path) -> Iterator[Repo]:
    with open_repository(repo) as result:
        yield result


def test_reads_a_single_path_of_a_commit(repo: Path, opened_repo: Repo, git: Git) -> None:
    assert [blob.path for blob in history.files(opened_repo, git(repo, "rev-parse", "HEAD"), "code/run.sh")] == ["code/run.sh"]


def test_lists_commits_by_time_and_path(repo: Path, opened_repo: Repo, git: Git) -> None:
    first, second = git(repo, "rev-parse", "HEAD~1"), git(repo, "rev-parse", "HEAD")
    assert history.commits(opened_repo, most=5) == [second, first]
    assert history.commits(opened_repo, most=1) == [second]
    assert history.commits(opened_repo, most=5, before=1_782_869_400) == [first]  # half past one
    assert history.commits(opened_repo, most=5, path="code/run.sh") == [first]
    assert history.has(opened_repo, first)
    assert not history.has(opened_repo, "0" * 40)


@pytest.mark.parametrize("word", ["HEAD", "main", "--output=stolen", "-h", "", "0" * 39])
def test_an_invalid_name_is_not_passed_to_git(repo: Path, opened_repo: Repo, word: str) -> None:
    assert not history.has(opened_repo, word)
    with pytest.raises(GitError, match="is not the name of a commit"):
        history.files(opened_repo, word)
    assert not (repo / "stolen").exists()


def test_a_missing_commit_or_blob_is_an_error(opened_repo: Repo) -> None:
    with pytest.raises(GitError):
        history.files(opened_repo, "0" * 40)
    with pytest.raises(GitError, match="is missing"):
        history.contents(opened_repo, ["0" * 40])


def test_a_submodule_is_refused(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "init", "other")
    git(tmp_path / "other", "commit", "--allow-empty", "-m", "x")
    git(repo, "submodule", "add", str(tmp_path / "other"), "code/sub")
    git(repo, "commit", "-m", "sub")
    with open_repository(repo) as opened_repo, pytest.raises(GitError, match="submodule"):
        history.files(opened_repo, git(repo, "rev-parse", "HEAD"))
