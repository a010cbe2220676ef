"""What git knows, asked of real repositories, without making git run anything."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from repro_env.capture import git as asked
from repro_env.capture import gitask
from repro_env.model.environment import Git as Facts
from tests.capture.conftest import Git
from tests.parts import need


def facts(root: Path, **options: object) -> Facts:
    answer = asked.look(root, **options)  # type: ignore[arg-type]
    assert answer.problems == ()
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


def test_no_repository(tmp_path: Path) -> None:
    assert asked.look(tmp_path) == asked.Answer(None)
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
    assert asked.look(repo / ".git").problems != ()


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
    (repo / "docs").mkdir()
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
    away = asked.look(repo)
    assert away.git is not None
    assert away.git.submodules == clean.submodules
    assert away.problems == (
        "vendored/lib: a submodule that is not checked out, its files are missing: git submodule update --init",
    )
    assert facts(repo / "docs").dirty is False


def test_submodules_in_submodules_and_folders_that_only_look_like_one(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "inner")
    git(tmp_path, "clone", str(repo), "outer")
    git(tmp_path / "outer", "submodule", "add", str(tmp_path / "inner"), "in")
    git(tmp_path / "outer", "commit", "-m", "with inner")
    git(repo, "submodule", "add", str(tmp_path / "outer"), "out")
    git(repo, "commit", "-m", "with outer")
    git(repo, "submodule", "update", "--init", "--recursive")
    clean = facts(repo)
    assert [one.partition(" ")[2] for one in clean.submodules] == ["out", "out/in"]
    assert clean.dirty is False
    (repo / "out/in/train.py").write_text("edited")
    assert facts(repo).dirty is True
    git(repo / "out/in", "checkout", ".")
    git(repo, "mv", "out", "away")
    moved = facts(repo)
    assert ([one.partition(" ")[2] for one in moved.submodules], moved.dirty) == (["away", "away/in"], True)
    git(repo, "reset", "--hard")
    git(repo, "submodule", "deinit", "--force", "--all")
    (repo / "out" / ".git").mkdir(parents=True)
    answer = asked.look(repo)
    assert answer.git is not None
    assert answer.git.diff is None  # git itself goes on with the outer repository from such a folder
    assert "out: a submodule that is not checked out" in answer.problems[0]


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
    (repo / "all").mkdir()
    (repo / "all" / "x.log").write_text("")
    listed = asked.ignored(repo)
    assert listed.paths - {"all/x.log"} == {"a.log", "out", "deep/b.log", "ü.log", "all"}
    assert listed.hollow == {"all"}
    assert listed.problem == ""
    assert asked.ignored(repo / "deep").paths == {"b.log"}
    assert asked.ignored(repo / "out").paths == frozenset()


def test_ignored_files_are_no_part_of_the_facts(repo: Path, git: Git) -> None:
    (repo / ".gitignore").write_text("*.log\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "rules")
    clean = facts(repo)
    (repo / "a.log").write_text("")
    assert facts(repo) == clean
    git(repo, "add", "--force", "a.log")
    assert (facts(repo).dirty, facts(repo).untracked) == (True, ())


def test_shallow_and_what_is_pushed(repo: Path, git: Git, tmp_path: Path) -> None:
    for name in ("second", "third"):
        git(repo, "commit", "--allow-empty", "-m", name)
    git(tmp_path, "clone", "--depth=1", f"file://{repo}", "cut")
    cut = facts(tmp_path / "cut")
    assert (cut.shallow, cut.pushed, facts(repo).shallow) == (True, "yes", False)
    git(tmp_path / "cut", "commit", "--allow-empty", "-m", "mine")
    assert facts(tmp_path / "cut").pushed == "no"
    # A pipeline fetches one commit by its name: which branch has it cannot be seen behind the cut.
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(tmp_path / "cut", "fetch", "--depth=1", "origin", git(repo, "rev-parse", "HEAD~1"))
    git(tmp_path / "cut", "checkout", "FETCH_HEAD")
    assert (facts(tmp_path / "cut").branch, facts(tmp_path / "cut").pushed) == ("", "unknown")


def test_a_linked_worktree_and_one_whose_repository_is_gone(repo: Path, git: Git, tmp_path: Path) -> None:
    git(repo, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    assert (facts(tmp_path / "tree").worktree, facts(repo).worktree) == (True, False)
    (tmp_path / "tree" / "train.py").write_text("print(2)\n")
    assert (facts(tmp_path / "tree").dirty, facts(repo).dirty) == (True, False)
    git(tmp_path, "clone", f"--separate-git-dir={tmp_path / 'store.git'}", str(repo), "apart")
    assert (tmp_path / "apart" / ".git").is_file()
    assert (facts(tmp_path / "apart").worktree, facts(tmp_path / "apart").pushed) == (False, "yes")
    repo.rename(tmp_path / "moved")
    answer = asked.look(tmp_path / "tree")
    assert answer.git is None
    assert "not a git repository" in answer.problems[0]


def test_a_sparse_checkout(repo: Path, git: Git) -> None:
    for folder in ("code", "data"):
        (repo / folder).mkdir()
        (repo / folder / "a.txt").write_text("")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "more")
    git(repo, "sparse-checkout", "set", "code")
    answer = asked.look(repo)
    assert answer.git is not None
    assert (answer.git.sparse, answer.git.dirty, answer.problems) == (True, False, ())
    assert answer.notes == ("sparse checkout: 1 committed files are not on disk and not in the snapshot",)


def test_edits_that_git_was_told_not_to_see(repo: Path, git: Git) -> None:
    (repo / "b.py").write_text("1\n")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "b")
    clean = facts(repo)
    git(repo, "update-index", "--assume-unchanged", "train.py")
    git(repo, "update-index", "--skip-worktree", "b.py")
    assert facts(repo) == clean
    for name, flag in (("train.py", "--no-assume-unchanged"), ("b.py", "--no-skip-worktree")):
        (repo / name).write_text("edited\n")
        answer = asked.look(repo)
        assert answer.git is not None
        assert answer.git.dirty is True
        git(repo, "update-index", flag, name)
        git(repo, "checkout", name)
    git(repo, "update-index", "--assume-unchanged", "train.py")
    assert asked.look(repo).notes == ("train.py: git was told to take no notice of edits there; the diff has them",)


@pytest.mark.parametrize("way", ["merge", "rebase", "cherry-pick", "revert", "bisect"])
def test_what_is_under_way(repo: Path, git: Git, way: str) -> None:
    git(repo, "checkout", "-b", "side")
    (repo / "train.py").write_text("side\n")
    git(repo, "commit", "-am", "side")
    git(repo, "checkout", "main")
    (repo / "train.py").write_text("main\n")
    git(repo, "commit", "-am", "main")
    words = {"merge": ["side"], "rebase": ["side"], "cherry-pick": ["side"], "revert": ["HEAD~1"], "bisect": ["start"]}[way]
    with contextlib.suppress(subprocess.CalledProcessError):  # in conflict
        git(repo, way, *words)
    answer = asked.look(repo)
    assert answer.git is not None
    assert (answer.git.state, answer.git.dirty) == (way, way in ("merge", "rebase", "cherry-pick"))
    assert f"a {way} is under way in the repository" in answer.notes
    assert answer.problems == ()


POINTER = "version https://" + "git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


def lfs(repo: Path, git: Git, path: str, content: bytes) -> None:
    """Commit a file as git-lfs would: the pointer in the commit, the content on disk, the index saying all is well."""
    pointer = POINTER.format(hashlib.sha256(content).hexdigest(), len(content))
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / path).write_text(pointer)
    git(repo, "add", ".")
    git(repo, "commit", "-m", path)
    (repo / path).write_bytes(content)


def test_lfs_pointers_on_disk_are_missing_content(repo: Path, git: Git) -> None:
    lfs(repo, git, "weights.bin", b"weights")
    git(repo, "checkout", ".")
    (repo / "plain.txt").write_text(POINTER.format("0" * 64, 1))
    answer = asked.look(repo)
    assert answer.git is not None
    assert (answer.git.lfs, answer.git.diff) == (("weights.bin",), None)
    assert answer.problems == ("weights.bin: on disk is the pointer of Git LFS, the content is missing: git lfs pull",)
    (repo / "deep").mkdir()
    assert asked.look(repo / "deep").problems == ()


def test_lfs_content_is_what_was_committed(repo: Path, git: Git) -> None:
    """Whatever the file's time is, and without git-lfs being there."""
    lfs(repo, git, "weights.bin", b"weights")
    for key in ("clean", "smudge", "process"):
        git(repo, "config", f"filter.lfs.{key}", "/bin/false")
    git(repo, "config", "filter.lfs.required", "true")
    os.utime(repo / "weights.bin", (1, 1))
    assert (facts(repo).dirty, facts(repo).lfs) == (False, ())
    (repo / "weights.bin").write_bytes(b"WEIGHTS")
    assert facts(repo).dirty is True
    (repo / "weights.bin").write_bytes(b"weights")
    (repo / "weights.bin").chmod(0o755)
    assert facts(repo).dirty is True


def test_other_conversions_are_said(repo: Path, git: Git) -> None:
    (repo / ".gitattributes").write_text("*.ipynb filter=nbstripout\n")
    (repo / "a.ipynb").write_text("{}")
    git(repo, "add", ".")
    git(repo, "commit", "-m", "notebook")
    git(repo, "config", "filter.nbstripout.clean", "/bin/false")
    git(repo, "config", "core.autocrlf", "input")
    assert asked.look(repo).notes == (
        "a.ipynb: go through the git filter nbstripout, which was not run; edits are told by the bytes on disk",
        "git converts line ends here (core.autocrlf=input): the snapshot has the files as they are on disk",
    )


def test_a_repository_of_another_user_is_git_s_to_refuse(repo: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    need(os.getuid() == 0, "only uid 0 can give files to another user")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    answer = asked.look(repo)
    assert answer.git is None
    assert f"git config --global --add safe.directory {repo}" in answer.problems[0]
    assert f"git config --global --add safe.directory {repo}" in asked.ignored(repo).problem
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(repo))
    assert facts(repo).commit != ""
    monkeypatch.delenv("GIT_CONFIG_COUNT")
    assert asked.look(repo).git is None
    git(repo, "config", "--global", "--add", "safe.directory", str(repo))
    assert facts(repo).commit != ""


def test_a_partial_clone_fetches_nothing(repo: Path, git: Git, tmp_path: Path) -> None:
    """Whatever its configuration allows: a remote may be any program."""
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
    monkeypatched = {**gitask._SET, "GIT_NO_LAZY_FETCH": "0"}  # as an older git, which does not know it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gitask, "_SET", monkeypatched)
        answer = asked.look(repo)
    assert not mark.exists()
    assert answer.git is not None
    assert answer.git.dirty is True
    assert answer.problems[0].startswith("whether the source is as committed: the repository is a partial clone that lacks")
    assert "`git diff HEAD` there, which fetches them" in answer.problems[0]


def test_a_working_tree_that_the_configuration_puts_elsewhere(repo: Path, git: Git, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    git(repo, "config", "core.worktree", str(tmp_path / "elsewhere"))
    answer = asked.look(repo)
    assert answer.git is None
    assert len(answer.problems) == 1


def test_without_the_program(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert asked.look(repo) == asked.Answer(None, ("git facts of the source: there is no git program",))
    assert asked.ignored(repo).problem == "which paths git ignores: there is no git program"


def test_a_symlink_to_a_folder_of_a_repository(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "new.py").write_text("")
    (tmp_path / "link").symlink_to(repo / "sub")
    assert facts(tmp_path / "link") == facts(repo / "sub")
    assert facts(tmp_path / "link").untracked == ("new.py",)


def test_untracked_files_with_odd_names(repo: Path) -> None:
    (repo / "new\nline.py").write_text("")
    Path(os.fsdecode(os.fsencode(repo) + b"/bad\xff.py")).write_text("")
    assert facts(repo).untracked == ("bad?.py", "new?line.py")


def test_a_branch_of_another_name(repo: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repo), "clone")
    clone = tmp_path / "clone"
    git(clone, "branch", "-m", "main", "trunk")
    assert (facts(clone).branch, facts(clone).pushed) == ("trunk", "yes")
    git(repo, "branch", "-m", "main", "default")
    git(clone, "fetch", "--prune", "origin")
    assert (facts(clone).pushed, facts(clone).remote) == ("yes", str(repo))
    git(clone, "commit", "--allow-empty", "-m", "mine")
    assert facts(clone).pushed == "no"
