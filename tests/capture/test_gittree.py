from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.capture import gittree
from repro_env.capture.gitask import GitError, Repo, opened
from tests.capture.conftest import Git


@pytest.fixture
def repo(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits, an hour apart, with a folder `code` that is asked about."""
    folder = tmp_path / "repo"
    (folder / "code" / "pkg").mkdir(parents=True)
    git(folder, "init")
    for hour, text in ((1, "one\n"), (2, "two\n")):
        (folder / "code" / "pkg" / "a b.py").write_text(text)
        (folder / "code" / "run.sh").write_text("#!/bin/sh\n")
        (folder / "code" / "run.sh").chmod(0o755)
        (folder / "outside").write_text("x")
        if hour == 1:
            (folder / "code" / "link").symlink_to("pkg/a b.py")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-07-01T0{hour}:00:00Z")
        git(folder, "add", ".")
        git(folder, "commit", "-m", f"{hour}")
    return folder


def test_the_files_of_a_commit_with_their_bytes(repo: Path, git: Git) -> None:
    commit = git(repo, "rev-parse", "HEAD~1")
    with opened(repo / "code") as code:
        found = {one.path: one for one in gittree.files(code, commit)}
        data = gittree.contents(code, [one.name for one in found.values()])
        assert gittree.contents(code, []) == {}
    assert {path: one.mode for path, one in found.items()} == {"link": "120000", "pkg/a b.py": "100644", "run.sh": "100755"}
    assert {path: data[one.name] for path, one in found.items()} == {
        "link": b"pkg/a b.py",
        "pkg/a b.py": b"one\n",
        "run.sh": b"#!/bin/sh\n",
    }
    assert all(len(data[one.name]) == one.size for one in found.values())


@pytest.fixture
def there(repo: Path) -> Iterator[Repo]:
    with opened(repo) as found:
        yield found


def test_one_path_of_a_commit(repo: Path, there: Repo, git: Git) -> None:
    assert [one.path for one in gittree.files(there, git(repo, "rev-parse", "HEAD"), "code/run.sh")] == ["code/run.sh"]


def test_commits_by_time_and_path(repo: Path, there: Repo, git: Git) -> None:
    first, second = git(repo, "rev-parse", "HEAD~1"), git(repo, "rev-parse", "HEAD")
    assert gittree.commits(there, most=5) == [second, first]
    assert gittree.commits(there, most=1) == [second]
    assert gittree.commits(there, most=5, before=1_782_869_400) == [first]  # half past one
    assert gittree.commits(there, most=5, path="code/run.sh") == [first]
    assert gittree.has(there, first)
    assert not gittree.has(there, "0" * 40)


@pytest.mark.parametrize("word", ["HEAD", "main", "--output=stolen", "-h", "", "0" * 39])
def test_a_word_that_is_no_name_never_reaches_git(repo: Path, there: Repo, word: str) -> None:
    assert not gittree.has(there, word)
    with pytest.raises(GitError, match="names no commit"):
        gittree.files(there, word)
    assert not (repo / "stolen").exists()


def test_what_is_not_there_is_an_error(there: Repo) -> None:
    with pytest.raises(GitError):
        gittree.files(there, "0" * 40)
    with pytest.raises(GitError, match="is not there"):
        gittree.contents(there, ["0" * 40])


def test_a_submodule_is_refused(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "init", "other")
    git(tmp_path / "other", "commit", "--allow-empty", "-m", "x")
    git(repo, "submodule", "add", str(tmp_path / "other"), "code/sub")
    git(repo, "commit", "-m", "sub")
    with opened(repo) as there, pytest.raises(GitError, match="submodule"):
        gittree.files(there, git(repo, "rev-parse", "HEAD"))
