"""Compute the digest of a working tree's diff, such that commit, diff and untracked files together restore the tree."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git import directory as gitdir
from repro_env.environment.git.command import (
    NoRepositoryError,
    Repo,
    git_line,
    git_output,
    head_commit,
    join_paths,
    open_repository,
)
from repro_env.io.files import read_regular, sha256_of
from repro_env.schema import codec

OPTIONS = (
    "diff", "--binary", "--full-index", "--no-color", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
    "--diff-algorithm=myers", "--no-indent-heuristic", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/",
    "--submodule=short", "--ignore-submodules=dirty", "-O/dev/null",
)  # fmt: skip
"""These options fix everything that a user's configuration could change in a diff."""
_RAW = ("diff", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
        "--ignore-submodules=all", "-O/dev/null")  # fmt: skip
_POINTER = re.compile(
    rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n"
)
_POINTER_SIZE = 1024
"""Bytes; the limit of the pointer format."""


class Submodule(msgspec.Struct, frozen=True):
    path: str
    """Relative to the top of the outermost repository."""
    commit: str
    """The commit that is checked out, else the one recorded in the index."""
    is_checked_out: bool


class Index(msgspec.Struct, frozen=True):
    """The entries of a repository's index that are not plain files on disk."""

    links: tuple[tuple[str, str], ...]
    """(path, commit) of each submodule."""
    hidden: tuple[str, ...]
    """Files on disk that git is configured to ignore (`assume-unchanged`, `skip-worktree`)."""


def index_of(repo: Repo) -> Index:
    links: dict[str, str] = {}
    hidden = []
    for entry in git_output(repo, "ls-files", "-s", "-v", "-z").split(b"\0"):
        if not entry:
            continue
        facts, _, raw = entry.partition(b"\t")
        tag, mode, commit, _ = facts.split(b" ")
        path = os.fsdecode(raw)
        if mode == b"160000":
            links[path] = commit.decode()
        elif (tag in b"Ss" or tag.islower()) and os.path.lexists(repo.root / path):
            hidden.append(path)
    return Index(tuple(sorted(links.items())), tuple(hidden))


def submodules(repo: Repo, index: Index, below: str = "") -> list[Submodule]:
    """Return all submodules, also nested ones, sorted by path. `repo` must be open at its top; `below` is its path."""
    result = []
    for path, recorded in index.links:
        directory = repo.top / path
        if not (is_top(directory) and _is_inside(directory, repo.top)):
            result.append(Submodule(below + path, recorded, is_checked_out=False))
            continue
        with open_repository(directory) as inner:
            result.append(Submodule(below + path, head_commit(inner, below + path) or recorded, is_checked_out=True))
            result += submodules(inner, index_of(inner), f"{below}{path}/")
    return sorted(result, key=lambda submodule: submodule.path)


def is_top(directory: Path) -> bool:
    """Whether the directory is the top of a working tree, not just inside one."""
    try:
        location = gitdir.find(directory)
    except NoRepositoryError:
        return False
    return location is not None and str(location.top) == os.path.realpath(directory)


def _is_inside(path: Path, top: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(top) + "/")


def combined_digest(repo: Repo, commit: str, index: Index, submodules: Sequence[Submodule], never: Sequence[Path]) -> str | None:
    """Return the sha256 of the binary diff, or the digest of all diffs if submodules were edited. None if nothing changed."""
    outer = _digest(repo, commit, index, never)
    parts = []
    for submodule in submodules:
        if submodule.is_checked_out:
            with open_repository(repo.top / submodule.path) as inner:
                if digest := _digest(inner, submodule.commit, index_of(inner), never):
                    parts.append([submodule.path, digest])
    return codec.digest([outer, *parts]) if parts else outer


def _digest(repo: Repo, commit: str, index: Index, never: Sequence[Path]) -> str | None:
    """Return the sha256 of one repository's diff, or None if it is empty. Raises `GitError`."""
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        output = Path(scratch, "diff")
        write(repo, commit, index, output, never)
        return "sha256:" + sha256_of(output) if output.stat().st_size else None


def write(repo: Repo, commit: str, index: Index, output: Path, never: Sequence[Path] = ()) -> None:
    """Write the diff of the working tree against the commit (against nothing on an unborn branch). Raises `GitError`.

    `repo` must be open at its top.
    """
    base = commit or git_line(repo, "hash-object", "-t", "tree", os.devnull)
    excluded = [os.path.relpath(os.path.realpath(path), repo.top) for path in never]
    specs = [f":(top,exclude,literal){path}" for path in excluded if path != ".." and not path.startswith("../")]
    original, own = repo.private / "index", output.with_name("index")
    if original.exists():
        # `copy2` keeps the timestamp, from which git decides which entries to read again.
        shutil.copy2(original, own)
        for flag in ("--no-assume-unchanged", "--no-skip-worktree") if index.hidden else ():
            git_output(repo, "update-index", flag, "-z", "--stdin", stdin=join_paths(list(index.hidden)), index=own)
        same = _unchanged_lfs_files(repo, base, frozenset(lfs_files(repo)), own)
        if same:
            git_output(repo, "update-index", "--assume-unchanged", "-z", "--stdin", stdin=join_paths(same), index=own)
    git_output(repo, *OPTIONS, f"--output={output}", base, "--", *specs, index=own)


def lfs_files(repo: Repo) -> list[str]:
    """Return the tracked files below `repo.root` that have the filter attribute of Git LFS."""
    listed = git_output(repo, "ls-files", "-z")
    fields = git_output(repo, "check-attr", "-z", "--stdin", "filter", stdin=listed).split(b"\0")
    return [os.fsdecode(path) for path, name in zip(fields[::3], fields[2::3], strict=False) if name == b"lfs"]


def pointers(repo: Repo) -> list[str]:
    """Return the tracked files below `repo.root` that are LFS pointers on disk, because their content was not downloaded."""
    return [path for path in lfs_files(repo) if _is_pointer(repo.root / path)]


def _is_pointer(path: Path) -> bool:
    try:
        return _POINTER.match(read_regular(path, _POINTER_SIZE)) is not None
    except OSError:
        return False


def _unchanged_lfs_files(repo: Repo, base: str, large: frozenset[str], index: Path) -> list[str]:
    """Return files that only seem changed, since the commit has an LFS pointer and the disk has the content it points to."""
    if not large:
        return []
    fields = git_output(repo, *_RAW, base, index=index).split(b"\0")
    same = []
    for facts, raw in zip(fields[::2], fields[1::2], strict=False):
        path = os.fsdecode(raw)
        old_mode, mode, blob, _, status = facts.decode().split(" ")
        if path not in large or status != "M" or old_mode[1:] != mode:
            continue
        match = _POINTER.match(git_output(repo, "cat-file", "blob", blob))
        try:
            if match and (repo.top / path).lstat().st_size == int(match[2]) and sha256_of(repo.top / path) == match[1].decode():
                same.append(path)
        except OSError:
            continue
    return same
