"""What git's history holds: which commits there are, the files of one, and their bytes. Raises `GitError`."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from repro_env.capture.gitask import GitError, Repo, ask, line

NAME = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Of a commit or blob. What comes from a spec or record is held against it: git would take a word like `--output=x` for an option."""
LINK = "120000"
EXECUTABLE = "100755"
_FILES = {"100644", "100664", EXECUTABLE, LINK}


class Blob(msgspec.Struct, frozen=True):
    path: str
    """Relative to the folder that was asked about."""
    mode: str
    name: str
    """Of the blob, in hex."""
    size: int


def commits(repo: Repo, *, before: float | None = None, most: int, path: str = "") -> list[str]:
    """Of all branches and tags, the newest first; those made before a time (seconds since 1970), those that touch a path."""
    age = [] if before is None else [f"--min-age={int(before)}"]
    rows = ask(repo, "rev-list", "--all", f"--max-count={most}", *age, "--", *([path] if path else []))
    return rows.decode("ascii", "replace").split()


def has(repo: Repo, commit: str) -> bool:
    """Whether the commit is there."""
    return NAME.fullmatch(commit) is not None and line(repo, "rev-parse", "-q", "--verify", f"{commit}^{{commit}}") == commit


def files(repo: Repo, commit: str, path: str = "") -> list[Blob]:
    """Files and symlinks of a commit below `root`, or just one path of it. Raises for a commit with a submodule there."""
    if not NAME.fullmatch(commit):
        raise GitError(f"{commit!r} names no commit")
    found = []
    for row in ask(repo, "ls-tree", "-r", "-z", "-l", commit, *(["--", path] if path else [])).split(b"\0")[:-1]:
        facts, _, name = row.partition(b"\t")
        mode, _, blob, size = facts.decode("ascii", "replace").split()
        if mode not in _FILES:
            raise GitError(f"{name.decode(errors='replace')} is a submodule")
        try:
            found.append(Blob(name.decode(), mode, blob, int(size)))
        except ValueError:
            raise GitError("it has a path that is not UTF-8, or git does not know a size") from None
    return found


def contents(repo: Repo, names: Iterable[str]) -> dict[str, bytes]:
    """The bytes of blobs by their names. All are held at once."""
    asked = list(dict.fromkeys(names))
    data = ask(repo, "cat-file", "--batch", stdin="".join(f"{name}\n" for name in asked).encode()) if asked else b""
    found: dict[str, bytes] = {}
    at = 0
    for name in asked:
        end = data.find(b"\n", at)
        words = data[at:end].split()
        if end < 0 or len(words) != 3 or words[0].decode("ascii", "replace") != name or words[1] != b"blob":
            raise GitError(f"the blob {name[:12]} is not there")
        size = int(words[2])
        found[name] = data[end + 1 : end + 1 + size]
        if len(found[name]) != size:
            raise GitError("it gave less than it said")
        at = end + 2 + size
    return found
