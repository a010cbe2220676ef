"""What a working tree is beyond its commit: one digest, made so that commit + diff + untracked files give it again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.capture import gitdir
from repro_env.capture.gitask import NoRepositoryError, Repo, ask, head, line, listing, opened
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


class Index(msgspec.Struct, frozen=True):
    """What a repository's index lists, besides plain files."""

    links: tuple[tuple[str, str], ...]
    """(path, commit) of each submodule."""
    hidden: tuple[str, ...]
    """Files that are there and that git was told not to look at (`assume-unchanged`, `skip-worktree`)."""
    absent: int
    """Files that a sparse checkout leaves out."""


def index_of(repo: Repo) -> Index:
    links: dict[str, str] = {}
    hidden, absent = [], 0
    for row in ask(repo, "ls-files", "-s", "-v", "-z").split(b"\0"):
        if not row:
            continue
        facts, _, raw = row.partition(b"\t")
        tag, mode, commit, _ = facts.split(b" ")
        path = os.fsdecode(raw)
        if mode == b"160000":
            links[path] = commit.decode()
        elif tag in b"Ss" or tag.islower():
            if os.path.lexists(repo.root / path):
                hidden.append(path)
            else:
                absent += tag in b"Ss"
    return Index(tuple(sorted(links.items())), tuple(hidden), absent)


def submodules(repo: Repo, index: Index, below: str = "") -> list[Submodule]:
    """By path, those in submodules too. `repo`: asked about its top."""
    found = []
    for path, recorded in index.links:
        folder = repo.top / path
        if not (is_top(folder) and _is_inside(folder, repo.top)):
            found.append(Submodule(below + path, recorded, there=False))
            continue
        with opened(folder) as inner:
            found.append(Submodule(below + path, head(inner, below + path) or recorded, there=True))
            found += submodules(inner, index_of(inner), f"{below}{path}/")
    return sorted(found, key=lambda one: one.path)


def is_top(folder: Path) -> bool:
    """Whether a repository has its working tree right here; git would else go on with one further up."""
    try:
        place = gitdir.find(folder)
    except NoRepositoryError:
        return False
    return place is not None and str(place.top) == os.path.realpath(folder)


def _is_inside(path: Path, top: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(top) + "/")


def whole(
    repo: Repo, commit: str, index: Index, below: Sequence[Submodule], never: Sequence[Path], large: Sequence[str]
) -> str | None:
    """sha256 of the binary diff; with edited submodules, the digest of the list of all diffs. None when all is as committed."""
    outer = of(repo, commit, index, never, large)
    parts = []
    for one in below:
        if one.there:
            with opened(repo.top / one.path) as inner:
                if part := of(inner, one.commit, index_of(inner), never):
                    parts.append([one.path, part])
    return codec.digest([outer, *parts]) if parts else outer


def of(repo: Repo, commit: str, index: Index, never: Sequence[Path] = (), large: Sequence[str] | None = None) -> str | None:
    """sha256 of one repository's diff, None for an empty one. Raises `GitError`."""
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        output = Path(scratch, "diff")
        write(repo, commit, index, output, never, large)
        return "sha256:" + sha256_of(output) if output.stat().st_size else None


def write(
    repo: Repo, commit: str, index: Index, output: Path, never: Sequence[Path] = (), large: Sequence[str] | None = None
) -> None:
    """Write the diff of the working tree against the commit (against nothing on an unborn branch). Raises `GitError`.

    `repo`: asked about its top. `large`: its tracked files that go through Git LFS, where they are known.
    """
    base = commit or line(repo, "hash-object", "-t", "tree", os.devnull)
    apart = [os.path.relpath(os.path.realpath(path), repo.top) for path in never]
    specs = [f":(top,exclude,literal){path}" for path in apart if path != ".." and not path.startswith("../")]
    there, own = repo.private / "index", output.with_name("index")
    if there.exists():
        # The time is kept: git judges by it which entries it has to read again.
        shutil.copy2(there, own)
        for flag in ("--no-assume-unchanged", "--no-skip-worktree") if index.hidden else ():
            ask(repo, "update-index", flag, "-z", "--stdin", stdin=listing(list(index.hidden)), index=own)
        same = _same_by_lfs(repo, base, frozenset(filtered(repo).get("lfs", []) if large is None else large), own)
        if same:
            ask(repo, "update-index", "--assume-unchanged", "-z", "--stdin", stdin=listing(same), index=own)
    ask(repo, *OPTIONS, f"--output={output}", base, "--", *specs, index=own)


def filters(configured: Sequence[tuple[str, str]]) -> list[str]:
    """Names of the filters (git-lfs, git-crypt, nbstripout …) that the configuration defines."""
    return sorted({name[len("filter.") :].rpartition(".")[0] for name, _ in configured if name.startswith("filter.")})


def filtered(repo: Repo) -> dict[str, list[str]]:
    """Tracked files below the folder that is asked about, by the filter that attributes name for them."""
    listed = ask(repo, "ls-files", "-z")
    words = ask(repo, "check-attr", "-z", "--stdin", "filter", stdin=listed).split(b"\0")
    found: dict[str, list[str]] = {}
    for path, name in zip(words[::3], words[2::3], strict=False):
        if name not in (b"unspecified", b"unset", b"set"):
            found.setdefault(os.fsdecode(name), []).append(os.fsdecode(path))
    return found


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


def _same_by_lfs(repo: Repo, base: str, large: frozenset[str], index: Path) -> list[str]:
    """Files that only look changed, since the commit has their LFS pointer and the disk has what it points to."""
    if not large:
        return []
    rows = ask(repo, *_RAW, base, index=index).split(b"\0")
    same = []
    for facts, raw in zip(rows[::2], rows[1::2], strict=False):
        path = os.fsdecode(raw)
        old_mode, mode, blob, _, status = facts.decode().split(" ")
        if path not in large or status != "M" or old_mode[1:] != mode:
            continue
        match = _POINTER.match(ask(repo, "cat-file", "blob", blob))
        try:
            if match and (repo.top / path).lstat().st_size == int(match[2]) and sha256_of(repo.top / path) == match[1].decode():
                same.append(path)
        except OSError:
            continue
    return same
