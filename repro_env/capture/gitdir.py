"""Where a repository is, and a private copy of the files that git needs.

Git starts programs that a configuration names: filters, monitors, hooks, pagers, transports. So it never reads a
repository's own configuration. It works in a directory of ours that holds copies of HEAD, the references and the index,
and reads the objects where they are. All files are checked here first, so that git never waits for a named pipe.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from repro_env.io.files import open_regular

NOT_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that no stored path or line may hold."""
_SMALL = 1 << 20
"""Bytes of a HEAD, a reference, a configuration or a file of patterns."""
_LARGE = 1 << 30
"""Bytes of an index or of packed references."""
_HEAD = re.compile(rb"ref:\s*(refs/[^\0\n]+?)\s*|([0-9a-f]{40}|[0-9a-f]{64})\s*")
_REFERENCE = re.compile(rb"refs(?:/(?!\.)(?:(?!\.\.|@\{|\.lock(?:/|$))[^\x00-\x20\x7f~^:?*\[\\/])+)+")
_PACKED = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (\S+)")
_PATTERNS = frozenset({".gitattributes", ".gitignore", ".gitmodules"})
_LINKS = 5
"""Length of a chain of symbolic references: git's own limit."""
_BORROWED = 32
"""Object directories of one repository."""


class GitError(Exception):
    """Why git gives no answer, usually in git's own words."""


class NoRepositoryError(GitError):
    """There is a `.git`, but it does not lead to a repository."""


class Place(msgspec.Struct, frozen=True):
    """Where a repository is. All paths are real."""

    top: Path
    """Of the working tree."""
    mark: Path
    """Its `.git`: a directory, or a file that names one."""
    own: Path
    """The repository's directory; for a linked working tree, the one of that tree."""
    common: Path
    """The directory that all linked working trees share."""


def find(root: Path) -> Place | None:
    """The repository whose working tree holds `root`. None when no `.git` is there or above.

    A directory that merely looks like a bare repository is never taken for one: it could have come with a clone.
    Raises `NoRepositoryError` for a `.git` that leads nowhere, `GitError` for one that cannot be read.
    """
    real = Path(os.path.realpath(root))
    ceilings = {os.path.realpath(one) for one in os.environ.get("GIT_CEILING_DIRECTORIES", "").split(":") if one}
    marked = False
    for top in (real, *real.parents):
        if top != real and str(top) in ceilings:
            break
        mark = top / ".git"
        if not os.path.lexists(mark):
            continue
        marked = True
        own = _directory(mark)
        if own is None:
            continue  # as in git: an empty `.git` directory does not count
        if real.is_relative_to(own):
            raise GitError("this operation must be run in a work tree")
        return Place(top, mark, own, _common(own))
    if marked:
        raise NoRepositoryError("not a git repository (or any of the parent directories): .git")
    return None


def owned(place: Place) -> bool:
    """Whether a repository belongs to the user, by git's own rule: root may read root's, and that of whoever called sudo."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    return all(path.lstat().st_uid in users for path in (place.mark, place.top, place.own))


def configurations(place: Place) -> tuple[bytes, bytes]:
    """The text of the shared configuration, and of the configuration of the working tree."""
    return read(place.common / "config") or b"", read(place.own / "config.worktree") or b""


def copy_to(folder: Path, place: Place) -> None:
    """Copy into an empty directory what git needs of a repository, except configuration and objects.

    Raises `GitError`, `OSError`.
    """
    references, symbolic = _references(place)
    head = _head(place.own)
    (folder / "HEAD").write_bytes(b"ref: " + _target(head[1], symbolic) if head[1] else head[2])
    (folder / "refs").mkdir()
    if rows := [value + b" " + name + b"\n" for name, value in sorted(references.items())]:
        (folder / "packed-refs").write_bytes(b"".join(rows))
    copy(place.own / "index", folder / "index", _LARGE)
    for shared in place.own.glob("sharedindex.*"):
        copy(shared, folder / shared.name, _LARGE)
    copy(place.common / "shallow", folder / "shallow")
    (folder / "info").mkdir()
    for name in ("exclude", "attributes", "grafts"):
        copy(place.common / "info" / name, folder / "info" / name)
    copy(place.own / "info" / "sparse-checkout", folder / "info" / "sparse-checkout")


def objects(common: Path) -> Path:
    """The directory of objects. Raises `GitError` where git would wait for a pipe: in it, or in those it borrows from."""
    own = Path(os.path.realpath(common / "objects"))
    seen: set[Path] = set()
    pending = [own]
    while pending:
        folder = pending.pop()
        if folder in seen or not folder.is_dir():
            continue
        seen.add(folder)
        if len(seen) > _BORROWED:
            raise GitError(f"it borrows objects from more than {_BORROWED} directories")
        for path in _special(str(folder)):
            raise GitError(f"{_named(Path(path))} is not a regular file")
        for row in (read(folder / "info" / "alternates") or b"").split(b"\n"):
            if row.startswith(b'"') or b"\0" in row:
                raise GitError(f"{_named(folder)} borrows objects from a directory with an odd name")
            if row and not row.startswith(b"#"):
                pending.append(Path(os.path.realpath(folder / os.fsdecode(row))))
    return own


def is_unborn(own: Path, common: Path, head: bytes) -> bool:
    """Whether HEAD (its text in the private copy) is on a branch that does not exist yet, neither as a file nor packed.

    A branch that exists and cannot be read is not unborn, nor is anything when the packed references cannot be read.
    """
    target = head.removeprefix(b"ref: ")
    if target == head or not _REFERENCE.fullmatch(target):
        return False
    loose = [folder / os.fsdecode(target) for folder in (own, common)]
    if any(os.path.lexists(path) and not path.is_dir() for path in loose):
        return False
    rows = (read(common / "packed-refs", _LARGE) or b"").splitlines()
    packed = [_PACKED.fullmatch(row) for row in rows if row[:1] not in (b"#", b"^")]
    return all(match is not None and match[2] != target for match in packed)


def refuse_pipe(top: Path, *, deep: bool) -> None:
    """Raise `GitError` for a named pipe in a working tree that git reads when it lists files. Not `deep`: in its top only."""
    for below, _, names in os.walk(top):
        for name in names:
            path = Path(below, name)
            if (name in _PATTERNS or ".git" in path.parts) and path.is_fifo():
                name = _named(path.relative_to(top))
                raise GitError(f"{name} is a named pipe, and git would wait for it forever: remove it")
        if not deep:
            return


def read(path: Path, limit: int = _SMALL) -> bytes | None:
    """The bytes of a regular file; None when there is none. Raises `GitError` for anything else, or over `limit` bytes."""
    file = _open(path, limit)
    if file is None:
        return None
    with file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise GitError(f"{_named(path)} has more than {limit} bytes")
    return data


def copy(source: Path, target: Path, limit: int = _SMALL) -> None:
    """Copy a regular file with its time, by which git decides what it reads again. Raises as `read` does."""
    file = _open(source, limit)
    if file is None:
        return
    with file, target.open("wb") as output:
        facts = os.fstat(file.fileno())
        shutil.copyfileobj(file, output)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _open(path: Path, limit: int) -> BinaryIO | None:
    try:
        file = os.fdopen(open_regular(Path(os.path.realpath(path))), "rb")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise GitError(f"{_named(path)} is not a regular file") from None
        raise GitError(f"{_named(path)} cannot be read: {error.strerror}") from None
    if os.fstat(file.fileno()).st_size <= limit:
        return file
    file.close()
    raise GitError(f"{_named(path)} has more than {limit} bytes")


def _named(path: Path) -> str:
    return NOT_TEXT.sub("?", str(path))


def _directory(mark: Path) -> Path | None:
    """The repository's directory that a `.git` is or names; None for a directory that is not a repository."""
    if mark.is_dir():
        real = Path(os.path.realpath(mark))
        return real if _is_repository(real) else None
    text = read(mark)
    if text is None:  # a symlink to nothing
        return None
    if not text.startswith(b"gitdir: ") or b"\0" in text:
        raise NoRepositoryError(f"invalid gitfile format: {_named(mark)}")
    named = os.fsdecode(text[len(b"gitdir: ") :].rstrip(b"\r\n"))
    real = Path(os.path.realpath(mark.parent / named))
    if not _is_repository(real):
        raise NoRepositoryError(f"not a git repository: {_named(real)}")
    return real


def _is_repository(own: Path) -> bool:
    try:
        _head(own)
    except NoRepositoryError:
        return False
    common = _common(own)
    return (common / "objects").is_dir() and (common / "refs").is_dir()


def _common(own: Path) -> Path:
    named = os.fsdecode((read(own / "commondir") or b"").rstrip(b"\r\n"))
    return Path(os.path.realpath(own / named)) if named and "\0" not in named else own


def _head(own: Path) -> re.Match[bytes]:
    """A HEAD as git accepts it: its target, else the name of its commit. Raises `NoRepositoryError` for any other."""
    path = own / "HEAD"
    data = b"ref: " + os.fsencode(path.readlink()) if path.is_symlink() else read(path)
    found = _HEAD.fullmatch(data or b"")
    if found is None:
        raise NoRepositoryError(f"not a git repository: {_named(own)}")
    return found


def _references(place: Place) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Object names of all references, and the targets of those that are symbolic."""
    found: dict[bytes, bytes] = {}
    for row in (read(place.common / "packed-refs", _LARGE) or b"").splitlines():
        if match := _PACKED.fullmatch(row):
            found[match[2]] = match[1]
    symbolic: dict[bytes, bytes] = {}
    for folder in dict.fromkeys((place.common, place.own)):
        for below, _, names in os.walk(folder / "refs"):
            for name in names:
                path = Path(below, name)
                match = _HEAD.fullmatch(read(path) or b"")
                full = os.fsencode(path.relative_to(folder))
                if match is not None and match[1]:
                    symbolic[full] = match[1]
                elif match is not None:
                    found[full] = match[2]
    found |= {name: found[target] for name in symbolic if (target := _target(name, symbolic)) in found}
    return {name: value for name, value in found.items() if _REFERENCE.fullmatch(name)}, symbolic


def _target(name: bytes, symbolic: Mapping[bytes, bytes]) -> bytes:
    for _ in range(_LINKS):
        name = symbolic.get(name, name)
    return name


def _special(folder: str, depth: int = 3) -> Iterator[str]:
    """Paths below a directory that are neither files nor directories, as deep as git looks."""
    with os.scandir(folder) as listing:
        for item in listing:
            if item.is_dir():
                if depth:
                    yield from _special(item.path, depth - 1)
            elif not item.is_file() and os.path.exists(item.path):  # noqa: PTH110
                yield item.path
