"""The code and data of two captures, or of a capture and a folder. Trees are compared path by path elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from repro_env.model.environment import Git
from repro_env.model.spec import Data, FileDigest
from repro_env.verify.difference import Difference


def commits(left: Git | None, right: Git | None, *, same: bool) -> Iterator[Difference]:
    """State of the repository. `same`: the files are equal; another commit around the same files changes nothing."""
    if left is None or right is None:
        if left is not right:
            sides = ("a repository" if one else "none that could be read" for one in (left, right))
            yield _seen("git", *sides, same=same)
        return
    about = "the files are the same" if same else ""
    yield from _other("commit", left.commit or "none yet", right.commit or "none yet", about)
    yield from _other("uncommitted changes", _state(left), _state(right), about)
    if left.submodules != right.submodules:
        yield from _other("submodules", ", ".join(left.submodules), ", ".join(right.submodules), about)


def requirements(left: Iterable[FileDigest], right: Iterable[FileDigest]) -> Iterator[Difference]:
    """The files that say what the project needs."""
    old, new = {one.path: one.sha256 for one in left}, {one.path: one.sha256 for one in right}
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            why = "says what the project needs"
            yield Difference(level="source", what=path, left=_short(old.get(path)), right=_short(new.get(path)), why=why)


def data(left: Iterable[Data], right: Iterable[Data]) -> Iterator[Difference]:
    """Data named at capture, by the path where runs see them."""
    old, new = {one.path: one for one in left}, {one.path: one for one in right}
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was is None or now is None or was.digest != now.digest:
            yield Difference(level="data", what=path, left=_data(was), right=_data(now))


def _data(one: Data | None) -> str:
    return "" if one is None else f"{one.files:,} files, {one.size:,} bytes, sha256 {one.digest.removeprefix('sha256:')[:12]}"


def _state(git: Git) -> str:
    parts = [_short(git.diff)] if git.diff else []
    parts += [f"{len(git.untracked)} untracked"] if git.untracked else []
    return ", ".join(parts) or ("yes" if git.dirty else "none")


def _other(what: str, left: str, right: str, why: str) -> Iterator[Difference]:
    """Where git stands is an observation; whether the files are the same is seen from the files."""
    if left != right:
        yield Difference(level="source", what=what, left=left, right=right, why=why, counts=False)


def _seen(what: str, left: str, right: str, *, same: bool) -> Difference:
    why = "the files are the same" if same else ""
    return Difference(level="source", what=what, left=left, right=right, why=why, counts=False)


def _short(digest: str | None) -> str:
    return (digest or "").removeprefix("sha256:")[:12]
