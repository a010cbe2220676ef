"""What a working tree is beyond its commit: one digest, made so that commit + diff + untracked files give it again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.capture.gitask import GitError, ask, line, listing, paths, settings
from repro_env.capture.gittree import NAME
from repro_env.io.files import sha256_of
from repro_env.model import codec

OPTIONS = (
    "diff", "--binary", "--full-index", "--no-color", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
    "--diff-algorithm=myers", "--no-indent-heuristic", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/",
    "--submodule=short", "--ignore-submodules=dirty", "-O/dev/null",
)  # fmt: skip
"""Everything that a user's configuration could change in a diff is said."""
_RAW = ("diff", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
        "--ignore-submodules=all", "-O/dev/null")  # fmt: skip
_POINTER = re.compile(
    rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n"
)
_POINTER_SIZE = 1024
"""Bytes: the format's own limit."""


class Submodule(msgspec.Struct, frozen=True):
    path: str
    """From the top of the outermost repository."""
    commit: str
    """What is checked out, else what is recorded."""
    there: bool
    """It is checked out."""


class Known(msgspec.Struct, frozen=True):
    """What was asked before, so that it is not asked again."""

    filters: list[str]
    large: list[str]
    """Tracked files of the whole repository that go through Git LFS."""


class Index(msgspec.Struct, frozen=True):
    """What a repository's index lists, besides plain files."""

    links: tuple[tuple[str, str], ...]
    """(path, commit) of each submodule."""
    hidden: tuple[str, ...]
    """Files that are there and that git was told not to look at (`assume-unchanged`, `skip-worktree`)."""
    absent: int
    """Files that a sparse checkout leaves out."""


def index_of(top: Path) -> Index:
    links: dict[str, str] = {}
    hidden, absent = [], 0
    for row in ask(top, "ls-files", "-s", "-v", "-z").split(b"\0"):
        if not row:
            continue
        facts, _, raw = row.partition(b"\t")
        tag, mode, commit, _ = facts.split(b" ")
        path = os.fsdecode(raw)
        if mode == b"160000":
            links[path] = commit.decode()
        elif tag in b"Ss" or tag.islower():
            if os.path.lexists(top / path):
                hidden.append(path)
            else:
                absent += tag in b"Ss"
    return Index(tuple(sorted(links.items())), tuple(hidden), absent)


def submodules(top: Path, index: Index, below: str = "") -> list[Submodule]:
    """By path, those in submodules too."""
    found = []
    for path, recorded in index.links:
        there = is_top(top / path) and _is_inside(top / path, top)
        used = line(top / path, "rev-parse", "-q", "--verify", "HEAD^{commit}") if there else ""
        found.append(Submodule(below + path, used or recorded, there))
        if there:
            found += submodules(top / path, index_of(top / path), f"{below}{path}/")
    return sorted(found, key=lambda one: one.path)


def is_top(folder: Path) -> bool:
    """Whether a repository has its working tree right here; git would else go on with one further up."""
    if not os.path.lexists(folder / ".git"):
        return False
    shown = line(folder, "rev-parse", "--show-toplevel")
    return bool(shown) and os.path.realpath(shown) == os.path.realpath(folder)


def _is_inside(path: Path, top: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(top) + "/")


def whole(
    top: Path, commit: str, index: Index, below: Sequence[Submodule], never: Sequence[Path], known: Known | None = None
) -> str | None:
    """sha256 of the binary diff; with edited submodules, the digest of the list of all diffs. None when all is as committed."""
    outer = of(top, commit, index, never, known)
    parts = [
        [one.path, part]
        for one in below
        if one.there and (part := of(top / one.path, one.commit, index_of(top / one.path), never))
    ]
    return codec.digest([outer, *parts]) if parts else outer


def of(top: Path, commit: str, index: Index, never: Sequence[Path] = (), known: Known | None = None) -> str | None:
    """sha256 of one repository's diff, None for an empty one. Raises `GitError`."""
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        output = Path(scratch, "diff")
        write(top, commit, index, output, never, known)
        return "sha256:" + sha256_of(output) if output.stat().st_size else None


def write(top: Path, commit: str, index: Index, output: Path, never: Sequence[Path] = (), known: Known | None = None) -> None:
    """Write the diff of the working tree against the commit (against nothing on an unborn branch). Raises `GitError`."""
    base = commit or line(top, "hash-object", "-t", "tree", "/dev/null")
    real = os.path.realpath(top)
    apart = [os.path.relpath(os.path.realpath(path), real) for path in never]
    specs = [f":(top,exclude,literal){path}" for path in apart if path != ".." and not path.startswith("../")]
    there = top / os.fsdecode(ask(top, "rev-parse", "--git-path", "index").rstrip(b"\n"))
    own = output.with_name("index")
    env = {"GIT_INDEX_FILE": str(own)}
    known = known or Known(filters=filters(settings(top)), large=filtered(top, "lfs"))
    options = _without(known.filters)
    if there.exists():
        # `git diff` refreshes the index on disk, whatever it is told. The time is kept: git judges by it which
        # entries it has to read again.
        shutil.copy2(there, own)
        for flag in ("--no-assume-unchanged", "--no-skip-worktree") if index.hidden else ():
            ask(top, "update-index", flag, "-z", "--stdin", stdin=listing(list(index.hidden)), env=env)
        same = _same_by_lfs(top, base, options, frozenset(known.large), env)
        if same:
            ask(top, "update-index", "--assume-unchanged", "-z", "--stdin", stdin=listing(same), env=env)
    ask(top, *options, *OPTIONS, f"--output={output}", base, "--", *specs, env=env)


def between(root: Path, old: str, new: str) -> list[tuple[str, str]]:
    """(`A`, `D`, `M` or `T`, path) of what differs below `root` between two commits. Raises `GitError` when one is not there."""
    if not (NAME.fullmatch(old) and NAME.fullmatch(new)):
        raise GitError("that is no name of a commit")  # a stranger's spec could name `--output=FILE`, which git would write to
    names = ("diff", "--name-status", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--relative", "-O/dev/null")
    words = paths(ask(root, *names, old, new, "--", "."))
    return list(zip(words[::2], words[1::2], strict=True))


def filters(configured: Sequence[tuple[str, str]]) -> list[str]:
    """Names of the filters (git-lfs, git-crypt, nbstripout …) that the configuration defines."""
    return sorted({name[len("filter.") :].rpartition(".")[0] for name, _ in configured if name.startswith("filter.")})


def _without(drivers: Sequence[str]) -> list[str]:
    """Options that make these filters do nothing."""
    nothing = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return [part for driver in drivers for key, value in nothing for part in ("-c", f"filter.{driver}.{key}={value}")]


def filtered(folder: Path, name: str) -> list[str]:
    """Tracked files below a folder that go through a filter, relative to it."""
    return paths(ask(folder, "ls-files", "-z", "--", f":(attr:filter={name})"))


def pointers(folder: Path, tracked: Sequence[str]) -> list[str]:
    """Those of the tracked files that Git LFS was to bring and did not: on disk is the pointer."""
    return [path for path in tracked if (data := _small(folder / path)) is not None and _POINTER.match(data)]


def _small(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(fd, _POINTER_SIZE) if os.fstat(fd).st_size < _POINTER_SIZE else None
        finally:
            os.close(fd)
    except OSError:
        return None


def _same_by_lfs(top: Path, base: str, options: Sequence[str], large: frozenset[str], env: dict[str, str]) -> list[str]:
    """Files that only look changed, since the commit has their LFS pointer and the disk has what it points to."""
    if not large:
        return []
    rows = ask(top, *options, *_RAW, base, env=env).split(b"\0")
    same = []
    for facts, raw in zip(rows[::2], rows[1::2], strict=False):
        path = os.fsdecode(raw)
        old_mode, mode, blob, _, status = facts.decode().split(" ")
        if path not in large or status != "M" or old_mode[1:] != mode:
            continue
        match = _POINTER.match(ask(top, "cat-file", "blob", blob))
        try:
            if match and (top / path).lstat().st_size == int(match[2]) and sha256_of(top / path) == match[1].decode():
                same.append(path)
        except OSError:
            continue
    return same
