"""Facts about real git repositories, which are read without running programs of the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from repro_env.environment.git import command
from repro_env.environment.git import repository as gitfacts
from repro_env.schema.environment import Git as Facts
from tests.environment.conftest import Git
from tests.parts import need


def facts(root: Path, **options: object) -> Facts:
    answer = gitfacts.look(root, **options)  # type: ignore[arg-type]
    assert answer.problems == ()
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
        pushed="no",
        dirty=False,
        diff=None,
        untracked=(),
        submodules=(),
    )


def test_a_directory_outside_a_repository_has_no_facts(tmp_path: Path) -> None:
    assert gitfacts.look(tmp_path) == gitfacts.Answer(None)
    assert gitfacts.ignored(tmp_path) == gitfacts.Ignored(frozenset(), "")


def test_the_digest_of_the_diff_matches_git(repo: Path, git: Git) -> None:
    (repo / "train.py").write_text("print(2)\n")
    (repo / "ünï new.py").write_text("")
    found = facts(repo)
    diff = subprocess.run(["git", "-C", repo, "diff", "--binary", "--full-index", "HEAD"], capture_output=True, check=True).stdout
    assert found.diff == "sha256:" + hashlib.sha256(diff).hexdigest()
    assert (found.dirty, found.untracked) == (True, ("ünï new.py",))
    git(repo, "add", ".")
    staged = facts(repo)
    assert staged.untracked == ()
    assert staged.diff != found.diff
    assert facts(repo, included=set()).dirty is True
    git(repo, "reset", "--hard")
    (repo / "new").write_text("")
    assert (facts(repo).dirty, facts(repo, included=set()).dirty) == (True, False)


def test_user_settings_do_not_change_the_digest(repo: Path, git: Git) -> None:
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


def test_excluded_paths_are_not_part_of_the_diff(repo: Path, git: Git) -> None:
    (repo / "out").mkdir()
    (repo / "out" / "spec.json").write_text("1")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "output too")
    (repo / "out" / "spec.json").write_text("2")
    assert facts(repo).dirty is True
    assert facts(repo, never=[repo / "out", repo.parent / "away"]).dirty is False


def test_facts_of_an_unborn_branch(tmp_path: Path, git: Git) -> None:
    git(tmp_path, "init", "fresh")
    (tmp_path / "fresh" / "a.py").write_text("")
    found = facts(tmp_path / "fresh")
    assert (found.commit, found.branch, found.dirty, found.diff, found.untracked) == ("", "main", True, None, ("a.py",))
    git(tmp_path / "fresh", "add", ".")
    assert facts(tmp_path / "fresh").diff is not None


def test_facts_of_a_worktree_and_a_detached_head(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    assert facts(tmp_path / "tree").branch == "side"
    git(tmp_path / "tree", "checkout", "--detach")
    assert facts(tmp_path / "tree").branch == ""
    assert facts(tmp_path / "tree").commit == facts(repo).commit


def test_a_bare_repository_and_the_git_directory_have_no_facts(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "clone", "--bare", str(repo), str(tmp_path / "bare.git"))
    assert gitfacts.look(tmp_path / "bare.git").git is None
    assert gitfacts.look(repo / ".git").problems != ()


def test_a_commit_is_pushed_if_a_remote_branch_contains_it(repo: Path, git: Git, tmp_path: Path) -> None:
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


def test_facts_of_submodules(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "lib")
    git(repo, "submodule", "add", str(tmp_path / "lib"), "vendored/lib")
    (repo / "docs").mkdir()
    git(repo, "commit", "-m", "with lib")
    commit = git(repo / "vendored/lib", "rev-parse", "HEAD")
    clean = facts(repo)
    assert (clean.submodules, clean.dirty) == ((f"{commit} vendored/lib",), False)
    assert facts(repo / "vendored").submodules == (f"{commit} lib",)
    (repo / "vendored/lib/train.py").write_text("edited")
    edited = facts(repo)
    assert edited.dirty is True
    (repo / "vendored/lib/train.py").write_text("edited again")
    assert facts(repo).diff != edited.diff
    git(repo / "vendored/lib", "commit", "-am", "moved")
    moved = facts(repo)
    assert moved.dirty is True
    assert moved.submodules != clean.submodules
    git(repo, "submodule", "deinit", "--force", "vendored/lib")
    away = gitfacts.look(repo)
    assert away.git is not None
    assert away.git.submodules == clean.submodules
    assert away.problems == (
        "submodule not checked out, so its files are missing: vendored/lib; run `git submodule update --init`",
    )
    assert facts(repo / "docs").dirty is False


def test_nested_submodules_and_directories_that_are_not_submodules(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "inner")
    git(tmp_path, "clone", str(repo), "outer")
    git(tmp_path / "outer", "submodule", "add", str(tmp_path / "inner"), "in")
    git(tmp_path / "outer", "commit", "-m", "with inner")
    git(repo, "submodule", "add", str(tmp_path / "outer"), "out")
    git(repo, "commit", "-m", "with outer")
    git(repo, "submodule", "update", "--init", "--recursive")
    clean = facts(repo)
    assert [line.partition(" ")[2] for line in clean.submodules] == ["out", "out/in"]
    assert clean.dirty is False
    (repo / "out/in/train.py").write_text("edited")
    assert facts(repo).dirty is True
    git(repo / "out/in", "checkout", ".")
    git(repo, "mv", "out", "away")
    moved = facts(repo)
    assert ([line.partition(" ")[2] for line in moved.submodules], moved.dirty) == (["away", "away/in"], True)
    git(repo, "reset", "--hard")
    git(repo, "submodule", "deinit", "--force", "--all")
    (repo / "out" / ".git").mkdir(parents=True)
    answer = gitfacts.look(repo)
    assert answer.git is not None
    assert answer.git.diff is None  # git itself would use the outer repository here
    assert "submodule not checked out, so its files are missing: out;" in answer.problems[0]


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
    assert (found.dirty, found.diff, found.untracked) == (True, None, ("x.q",))
    (repo / "train.py").write_text("print(3)\n")
    assert facts(repo).diff is not None
    gitfacts.ignored(repo)
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
    for path in ("a.log", "keep.log", "out/x", "deep/b.log", "deep/c.py", "ü.log"):
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text("")
    (repo / "all").mkdir()
    (repo / "all" / "x.log").write_text("")
    listed = gitfacts.ignored(repo)
    assert listed.paths - {"all/x.log"} == {"a.log", "out", "deep/b.log", "ü.log", "all"}
    assert listed.hollow == {"all"}
    assert listed.problem == ""
    assert gitfacts.ignored(repo / "deep").paths == {"b.log"}
    assert gitfacts.ignored(repo / "out").paths == frozenset()


def test_ignored_files_do_not_affect_the_facts(repo: Path, git: Git) -> None:
    (repo / ".gitignore").write_text("*.log\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "rules")
    clean = facts(repo)
    (repo / "a.log").write_text("")
    assert facts(repo) == clean
    git(repo, "add", "--force", "a.log")
    assert (facts(repo).dirty, facts(repo).untracked) == (True, ())


def test_in_a_shallow_clone_it_may_be_unknown_whether_a_commit_is_pushed(repo: Path, git: Git, tmp_path: Path) -> None:
    for name in ("second", "third"):
        git(repo, "commit", "--allow-empty", "-m", name)
    git(tmp_path, "clone", "--depth=1", f"file://{repo}", "cut")
    cut = facts(tmp_path / "cut")
    assert cut.pushed == "yes"
    git(tmp_path / "cut", "commit", "--allow-empty", "-m", "mine")
    assert facts(tmp_path / "cut").pushed == "no"
    # A CI pipeline fetches a commit by its name. Without the history, no branch is known to contain it.
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path / "cut", "fetch", "--depth=1", "origin", git(repo, "rev-parse", "HEAD~1"))
    git(tmp_path / "cut", "checkout", "FETCH_HEAD")
    assert (facts(tmp_path / "cut").branch, facts(tmp_path / "cut").pushed) == ("", "unknown")


def test_a_linked_worktree_with_and_without_its_repository(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    (tmp_path / "tree" / "train.py").write_text("print(2)\n")
    assert (facts(tmp_path / "tree").dirty, facts(repo).dirty) == (True, False)
    git(tmp_path, "clone", f"--separate-git-dir={tmp_path / 'store.git'}", str(repo), "apart")
    assert (tmp_path / "apart" / ".git").is_file()
    assert facts(tmp_path / "apart").pushed == "yes"
    repo.rename(tmp_path / "moved")
    answer = gitfacts.look(tmp_path / "tree")
    assert answer.git is None
    assert "not a git repository" in answer.problems[0]


def test_a_sparse_checkout_is_not_dirty(repo: Path, git: Git) -> None:
    for directory in ("code", "data"):
        (repo / directory).mkdir()
        (repo / directory / "a.txt").write_text("")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "more")
    git(repo, "sparse-checkout", "set", "code")
    answer = gitfacts.look(repo)
    assert answer.git is not None
    assert (answer.git.dirty, answer.problems) == (False, ())


def test_edits_that_git_is_configured_to_ignore_are_found(repo: Path, git: Git) -> None:
    (repo / "b.py").write_text("1\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "b")
    clean = facts(repo)
    git(repo, "update-index", "--assume-unchanged", "train.py")
    git(repo, "update-index", "--skip-worktree", "b.py")
    assert facts(repo) == clean
    for name, flag in (("train.py", "--no-assume-unchanged"), ("b.py", "--no-skip-worktree")):
        (repo / name).write_text("edited\n")
        answer = gitfacts.look(repo)
        assert answer.git is not None
        assert answer.git.dirty is True
        git(repo, "update-index", flag, name)
        git(repo, "checkout", name)
    git(repo, "update-index", "--assume-unchanged", "train.py")
    assert gitfacts.look(repo).notes == ("git is configured to ignore edits of train.py; the recorded diff includes them",)


POINTER = "version https://" + "git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


def lfs(repo: Path, git: Git, path: str, content: bytes) -> None:
    """Commit a file like git-lfs: the commit has the pointer, the disk has the content, and the index is up to date."""
    pointer = POINTER.format(hashlib.sha256(content).hexdigest(), len(content))
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / path).write_text(pointer)
    git(repo, "add", ".")
    git(repo, "commit", "-m", path)
    (repo / path).write_bytes(content)


def test_an_lfs_pointer_on_disk_is_a_problem(repo: Path, git: Git) -> None:
    lfs(repo, git, "weights.bin", b"weights")
    git(repo, "checkout", ".")
    (repo / "plain.txt").write_text(POINTER.format("0" * 64, 1))
    answer = gitfacts.look(repo)
    assert answer.git is not None
    assert answer.git.diff is None
    assert answer.problems == ("only a Git LFS pointer is on disk, not the content: weights.bin; run `git lfs pull`",)
    (repo / "deep").mkdir()
    assert gitfacts.look(repo / "deep").problems == ()


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
    (repo / "weights.bin").write_bytes(b"weights")
    (repo / "weights.bin").chmod(0o755)
    assert facts(repo).dirty is True


def test_a_repository_of_another_user_is_refused_unless_it_is_trusted(
    repo: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(os.getuid() == 0, "only uid 0 can give files to another user")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    answer = gitfacts.look(repo)
    assert answer.git is None
    assert f"git config --global --add safe.directory {repo}" in answer.problems[0]
    assert f"git config --global --add safe.directory {repo}" in gitfacts.ignored(repo).problem
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(repo))
    assert facts(repo).commit != ""
    monkeypatch.delenv("GIT_CONFIG_COUNT")
    assert gitfacts.look(repo).git is None
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
        answer = gitfacts.look(repo)
    assert not mark.exists()
    assert answer.git is not None
    assert answer.git.dirty is True
    assert answer.problems[0].startswith(
        "git cannot compare the source with the commit: the repository is a partial clone in which some objects are missing"
    )
    assert "run `git diff HEAD` there to fetch them" in answer.problems[0]


def test_a_working_tree_in_a_different_directory_is_refused(repo: Path, git: Git, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git(repo, "config", "core.worktree", str(tmp_path / "elsewhere"))
    answer = gitfacts.look(repo)
    assert answer.git is None
    assert len(answer.problems) == 1


def test_without_git_the_problem_says_so(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    reason = "git is not installed or not on PATH"
    assert gitfacts.look(repo) == gitfacts.Answer(None, (f"cannot read the git facts of the source: {reason}",))
    assert gitfacts.ignored(repo).problem == f"cannot list the paths that git ignores: {reason}"


def test_a_symlink_to_a_directory_of_a_repository_has_its_facts(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "new.py").write_text("")
    (tmp_path / "link").symlink_to(repo / "sub")
    assert facts(tmp_path / "link") == facts(repo / "sub")
    assert facts(tmp_path / "link").untracked == ("new.py",)


def test_untracked_files_with_unprintable_names_are_listed(repo: Path) -> None:
    (repo / "new\nline.py").write_text("")
    Path(os.fsdecode(os.fsencode(repo) + b"/bad\xff.py")).write_text("")
    assert facts(repo).untracked == ("bad?.py", "new?line.py")


def test_a_pushed_commit_is_found_on_any_branch(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "clone")
    clone = tmp_path / "clone"
    git(clone, "branch", "-m", "main", "trunk")
    assert (facts(clone).branch, facts(clone).pushed) == ("trunk", "yes")
    git(repo, "branch", "-m", "main", "default")
    git(clone, "fetch", "--prune", "origin")
    assert (facts(clone).pushed, facts(clone).remote) == ("yes", str(repo))
    git(clone, "commit", "--allow-empty", "-m", "mine")
    assert facts(clone).pushed == "no"
