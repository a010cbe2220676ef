"""Read commits from git's history: list them, list their files, and read the contents. Raises `GitError`."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from repro_env.environment.git.command import GitError, Repo, git_line, git_output

NAME = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Name of a commit or blob. Names from a spec or record are checked, since git would treat `--output=x` as an option."""
LINK = "120000"
EXECUTABLE = "100755"
_FILES = {"100644", "100664", EXECUTABLE, LINK}


class Blob(msgspec.Struct, frozen=True):
    path: str
    """Relative to `repo.root`."""
    mode: str
    name: str
    """The blob's object name, in hex."""
    size: int


def commits(repo: Repo, *, before: float | None = None, most: int, path: str = "") -> list[str]:
    """Return at most `most` commits of all branches and tags, the newest first.

    `before`: only commits made before this time (seconds since 1970). `path`: only commits that changed this path.
    """
    age = [] if before is None else [f"--min-age={int(before)}"]
    listed = git_output(repo, "rev-list", "--all", f"--max-count={most}", *age, "--", *([path] if path else []))
    return listed.decode("ascii", "replace").split()


def has(repo: Repo, commit: str) -> bool:
    """Whether the repository has the commit."""
    return NAME.fullmatch(commit) is not None and git_line(repo, "rev-parse", "-q", "--verify", f"{commit}^{{commit}}") == commit


def files(repo: Repo, commit: str, path: str = "") -> list[Blob]:
    """Return the files and symlinks of a commit below `repo.root`, or only `path`. Raises `GitError` for a submodule."""
    if not NAME.fullmatch(commit):
        raise GitError(f"{commit!r} is not the name of a commit")
    blobs = []
    for entry in git_output(repo, "ls-tree", "-r", "-z", "-l", commit, *(["--", path] if path else [])).split(b"\0")[:-1]:
        facts, _, name = entry.partition(b"\t")
        mode, _, blob, size = facts.decode("ascii", "replace").split()
        if mode not in _FILES:
            raise GitError(f"{name.decode(errors='replace')} is a submodule")
        try:
            blobs.append(Blob(name.decode(), mode, blob, int(size)))
        except ValueError:
            raise GitError("a path of the commit is not UTF-8, or the size of a file is missing") from None
    return blobs


def contents(repo: Repo, names: Iterable[str]) -> dict[str, bytes]:
    """Return the bytes of each blob by its name. All contents are in memory at once."""
    unique_names = list(dict.fromkeys(names))
    stdin = "".join(f"{name}\n" for name in unique_names).encode()
    data = git_output(repo, "cat-file", "--batch", stdin=stdin) if unique_names else b""
    by_name: dict[str, bytes] = {}
    at = 0
    for name in unique_names:
        end = data.find(b"\n", at)
        fields = data[at:end].split()
        if end < 0 or len(fields) != 3 or fields[0].decode("ascii", "replace") != name or fields[1] != b"blob":
            raise GitError(f"the blob {name[:12]} is missing")
        size = int(fields[2])
        by_name[name] = data[end + 1 : end + 1 + size]
        if len(by_name[name]) != size:
            raise GitError(f"git printed less than the complete blob {name[:12]}")
        at = end + 2 + size
    return by_name
