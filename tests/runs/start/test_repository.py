"""The parts of a git repository that a run sees. Real repositories, some of them damaged on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.api.execute import FinishedRun
from repro_env.runs.records import ids
from repro_env.runs.start.origin import Submitted
from tests.api.place import Fake, Place
from tests.fakes import specs
from tests.parts import need


def git(directory: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A project in a repository, and an image with a git program."""
    need(shutil.which("git"), "there is no git program")
    place = Place(tmp_path)
    place.spec = place.at(
        specs.make(place.directory, {}, prefix=place.project / ".venv", overlay={"usr/bin/git": b"\x7fELF git"})
    )
    git(place.project, "init", "--quiet")
    (place.project / ".gitignore").write_text("runs/\n")
    git(place.project, "add", ".")
    git(place.project, "commit", "--quiet", "-m", "one")
    return place


def git_files(place: Place, done: FinishedRun) -> dict[str, bytes]:
    """Return the files of a run's git directory."""
    assert done.start.git is not None
    tree = place.store.layers.path(done.start.git)
    assert tree is not None
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_a_run_sees_refs_and_index_and_no_configuration(place: Place) -> None:
    git(place.project, "tag", "v1")
    config = place.project / ".git" / "config"
    secret = "https://me:hidden-word-9@example.org/x.git"
    config.write_text(
        config.read_text()
        + f'[remote "origin"]\n\turl = {secret}\n[core]\n\tfsmonitor = touch /tmp/x\n\tautocrlf = input\n\tsshCommand = evil\n'
        + '[filter "a=b"]\n\tclean = evil\n[include]\n\tpath = /etc/passwd\n'
    )
    (place.project / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\n")
    backend = Fake()
    done = place.run(backend=backend)
    files = git_files(place, done)
    assert {"HEAD", "index", "config", "refs/tags/v1"} <= files.keys()
    assert not [path for path in files if path.startswith(("hooks/", "logs/", "objects/"))]
    assert (
        files["config"]
        == b"[core]\n\tbare = false\n\tcheckstat = minimal\n\tautocrlf = input\n\tfilemode = true\n\trepositoryformatversion = 0\n"
    )
    launch = backend.launch
    assert launch is not None
    assert [(mount.kind, mount.target, mount.read_only) for mount in launch.mounts] == [
        ("git", f"{place.project}/.git", True),
        ("git", f"{place.project}/.git/objects", True),
    ]
    assert launch.mounts[1].source == f"{place.project}/.git/objects"
    assert {variable.name: variable.value for variable in launch.env}["GIT_CONFIG_VALUE_0"] == str(place.project)
    assert "git in the run sees the repository" in place.talk


def test_a_linked_working_tree_has_its_own_head(place: Place, tmp_path: Path) -> None:
    git(place.project, "branch", "other")
    main = tmp_path / "main"
    main.mkdir()
    (place.project / ".git").rename(main / ".git")
    git(main, "worktree", "add", "--quiet", "--no-checkout", str(tmp_path / "linked"), "other")
    (tmp_path / "linked" / ".git").rename(place.project / ".git")
    git(main, "worktree", "repair", str(place.project))
    assert git_files(place, place.run())["HEAD"] == b"ref: refs/heads/other\n"


def symlinked_directory(project: Path, other: Path) -> None:
    (project / ".git").rename(other / "moved")
    (project / ".git").symlink_to(other / "moved")


def foreign_git_file(project: Path, other: Path) -> None:
    """A clone may have a `.git` file that names another repository."""
    git(other, "init", "--quiet")
    shutil.rmtree(project / ".git")
    (project / ".git").write_text(f"gitdir: {other}/.git\n")


def objects_elsewhere(project: Path, other: Path) -> None:
    shutil.rmtree(project / ".git" / "objects")
    (project / ".git" / "objects").symlink_to(other)


def with_alternates(project: Path, other: Path) -> None:
    (project / ".git" / "objects" / "info" / "alternates").write_text(f"{other}\n")


def with_named_pipe(project: Path, other: Path) -> None:
    assert other.is_dir()
    os.mkfifo(project / ".git" / "sharedindex.0")


def symlinked_head(project: Path, other: Path) -> None:
    (other / "secret").write_text("ref: x")
    (project / ".git" / "HEAD").unlink()
    (project / ".git" / "HEAD").symlink_to(other / "secret")


def without_head(project: Path, other: Path) -> None:
    assert other.is_dir()
    (project / ".git" / "HEAD").unlink()


def in_parent_directory(project: Path, other: Path) -> None:
    assert other.is_dir()
    (project / ".git").rename(project.parent / ".git")


DAMAGE = (
    symlinked_directory,
    foreign_git_file,
    objects_elsewhere,
    with_alternates,
    with_named_pipe,
    symlinked_head,
    without_head,
    in_parent_directory,
)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_does_not_see_a_damaged_or_foreign_repository(
    place: Place, damage: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    damage(place.project, other)
    backend = Fake()
    done = place.run(backend=backend)
    assert done.start.git is None
    assert "git in the run does not see the repository: " in place.talk
    assert backend.launch is not None
    assert backend.launch.mounts == ()


def test_a_symlink_in_refs_does_not_expose_a_host_file(place: Place, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    (place.project / ".git" / "refs" / "heads" / "x").symlink_to(tmp_path / "key")
    assert "refs/heads/x" not in git_files(place, place.run())


def test_a_run_sees_a_repository_only_if_the_image_has_git(place: Place) -> None:
    with_git = place.spec
    place.spec = place.at(specs.make(place.directory, {}, prefix=place.project / ".venv"))
    assert place.run().start.git is None
    place.spec = with_git
    specs.make(place.directory, {}, prefix=place.project / ".venv", overlay={"usr/bin/git": b"\x7fELF git"})
    shutil.rmtree(place.project / ".git")
    assert place.run().start.git is None
    assert "git in the run" not in place.talk


def test_a_repeated_run_sees_the_repository_of_the_first_run(place: Place) -> None:
    first = place.run()
    (place.project / "more").write_text("x")
    git(place.project, "add", "more")
    git(place.project, "commit", "--quiet", "-m", "two")
    assert place.run().start.git != first.start.git
    again = place.run(start=Submitted(run_id=ids.new(), start=first.start))
    assert again.start.git == first.start.git
    without = msgspec.structs.replace(first.start, git=None)
    assert place.run(start=Submitted(run_id=ids.new(), start=without)).start.git is None
    place.run(frozen=True)
    assert "the run uses the captured source" in place.talk
