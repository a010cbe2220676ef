"""Find a repository, and make a private copy of the files that git needs.

Git starts programs that a configuration names: filters, monitors, hooks, pagers, transports. So git must not read the
configuration of a repository. It works in a private directory with copies of HEAD, the references and the index, and
reads only the objects from the repository itself. This module checks all files first, so that git never waits for a
named pipe.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from repro_env.io.files import read_regular

NOT_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that must not occur in a stored path or line."""
_SMALL = 1 << 20
"""Maximum bytes of a HEAD, a reference, a configuration or a file of patterns."""
_LARGE = 1 << 30
"""Maximum bytes of an index or of packed references."""
_HEAD = re.compile(rb"ref:\s*(refs/[^\0\n]+?)\s*|([0-9a-f]{40}|[0-9a-f]{64})\s*")
_REFERENCE = re.compile(rb"refs(?:/(?!\.)(?:(?!\.\.|@\{|\.lock(?:/|$))[^\x00-\x20\x7f~^:?*\[\\/])+)+")
_PACKED = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (\S+)")
_PATTERNS = frozenset({".gitattributes", ".gitignore", ".gitmodules"})
_MAX_LINKS = 5
"""Maximum length of a chain of symbolic references, which is git's own limit."""
_MAX_OBJECT_DIRECTORIES = 32
"""Maximum number of object directories of a repository, including those of `alternates`."""


class GitError(Exception):
    """The reason why git failed, usually in git's own words."""


class NoRepositoryError(GitError):
    """There is a `.git`, but it does not lead to a repository."""


class Location(msgspec.Struct, frozen=True):
    """The directories of a repository. All paths are real."""

    top: Path
    """The top directory of the working tree."""
    dot_git: Path
    """Its `.git`: a directory, or a file that names one."""
    own: Path
    """The repository's directory; for a linked working tree, the one of that tree."""
    common: Path
    """The directory that all linked working trees share."""


def find(root: Path) -> Location | None:
    """Find the repository whose working tree contains `root`. Returns None if neither it nor a parent has a `.git`.

    A directory that looks like a bare repository is ignored, because a clone could contain it.
    Raises `NoRepositoryError` if `.git` does not lead to a repository, and `GitError` if it cannot be read.
    """
    real = Path(os.path.realpath(root))
    ceilings = {os.path.realpath(path) for path in os.environ.get("GIT_CEILING_DIRECTORIES", "").split(":") if path}
    has_dot_git = False
    for top in (real, *real.parents):
        if top != real and str(top) in ceilings:
            break
        dot_git = top / ".git"
        if not os.path.lexists(dot_git):
            continue
        has_dot_git = True
        own = _directory(dot_git)
        if own is None:
            continue  # like git, ignore an empty `.git` directory
        if real.is_relative_to(own):
            raise GitError("this operation must be run in a work tree")
        return Location(top, dot_git, own, _common(own))
    if has_dot_git:
        raise NoRepositoryError("not a git repository (or any of the parent directories): .git")
    return None


def is_owned(location: Location) -> bool:
    """Whether the repository belongs to the user. As in git, root may also read a repository of the user who called sudo."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    return all(path.lstat().st_uid in users for path in (location.dot_git, location.top, location.own))


def configurations(location: Location) -> tuple[bytes, bytes]:
    """Return the text of the shared configuration, and of the configuration of the working tree."""
    return read(location.common / "config") or b"", read(location.own / "config.worktree") or b""


def copy_to(directory: Path, location: Location) -> None:
    """Copy the files that git needs into an empty directory, except configuration and objects.

    Raises `GitError` or `OSError`.
    """
    references, symbolic = _references(location)
    head = _head(location.own)
    (directory / "HEAD").write_bytes(b"ref: " + _target(head[1], symbolic) if head[1] else head[2])
    (directory / "refs").mkdir()
    if lines := [value + b" " + name + b"\n" for name, value in sorted(references.items())]:
        (directory / "packed-refs").write_bytes(b"".join(lines))
    copy(location.own / "index", directory / "index", _LARGE)
    for shared in location.own.glob("sharedindex.*"):
        copy(shared, directory / shared.name, _LARGE)
    copy(location.common / "shallow", directory / "shallow")
    (directory / "info").mkdir()
    for name in ("exclude", "attributes", "grafts"):
        copy(location.common / "info" / name, directory / "info" / name)
    copy(location.own / "info" / "sparse-checkout", directory / "info" / "sparse-checkout")


def objects(common: Path) -> Path:
    """Return the directory of objects. Raises `GitError` if git would wait for a pipe in it or in one of its alternates."""
    own = Path(os.path.realpath(common / "objects"))
    checked: set[Path] = set()
    pending = [own]
    while pending:
        directory = pending.pop()
        if directory in checked or not directory.is_dir():
            continue
        checked.add(directory)
        if len(checked) > _MAX_OBJECT_DIRECTORIES:
            raise GitError(f"the repository uses objects from more than {_MAX_OBJECT_DIRECTORIES} directories")
        for path in _special_files(str(directory)):
            raise GitError(f"{_printable(Path(path))} is not a regular file")
        for line in (read(directory / "info" / "alternates") or b"").split(b"\n"):
            if line.startswith(b'"') or b"\0" in line:
                raise GitError(f"{_printable(directory)} uses objects from a directory with an unsupported name")
            if line and not line.startswith(b"#"):
                pending.append(Path(os.path.realpath(directory / os.fsdecode(line))))
    return own


def is_unborn(own: Path, common: Path, head: bytes) -> bool:
    """Whether HEAD is on a branch that does not exist yet, neither as a file nor packed. `head`: its text in the private copy.

    It is false if the branch exists but cannot be read, and if the packed references cannot be read.
    """
    target = head.removeprefix(b"ref: ")
    if target == head or not _REFERENCE.fullmatch(target):
        return False
    loose = [directory / os.fsdecode(target) for directory in (own, common)]
    if any(os.path.lexists(path) and not path.is_dir() for path in loose):
        return False
    lines = (read(common / "packed-refs", _LARGE) or b"").splitlines()
    packed = [_PACKED.fullmatch(line) for line in lines if line[:1] not in (b"#", b"^")]
    return all(match is not None and match[2] != target for match in packed)


def refuse_pipe(top: Path, *, deep: bool) -> None:
    """Raise `GitError` if git would wait for a named pipe in a working tree. Without `deep`, only its top is searched."""
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            if (name in _PATTERNS or ".git" in path.parts) and path.is_fifo():
                raise GitError(
                    f"{_printable(path.relative_to(top))} is a named pipe, for which git would wait forever; remove it"
                )
        if not deep:
            return


def read(path: Path, limit: int = _SMALL) -> bytes | None:
    """Return the bytes of a regular file, or None if it does not exist. Raises `GitError` for other kinds and larger files."""
    try:
        return read_regular(Path(os.path.realpath(path)), limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise GitError(f"{_printable(path)} is not a regular file") from None
        raise GitError(f"{_printable(path)} cannot be read: {error.strerror}") from None


def copy(source: Path, target: Path, limit: int = _SMALL) -> None:
    """Copy a regular file with its timestamp, by which git decides what to read again. Raises `GitError` or `OSError`."""
    try:
        facts = source.stat()  # before the bytes are read: with an older timestamp, git reads more files again
    except (FileNotFoundError, NotADirectoryError):
        return
    if (data := read(source, limit)) is not None:
        target.write_bytes(data)
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _printable(path: Path) -> str:
    return NOT_TEXT.sub("?", str(path))


def _directory(dot_git: Path) -> Path | None:
    """Return the repository's directory that a `.git` is or names, or None if `.git` is a directory without a repository."""
    if dot_git.is_dir():
        real = Path(os.path.realpath(dot_git))
        return real if _is_repository(real) else None
    text = read(dot_git)
    if text is None:  # a dangling symlink
        return None
    if not text.startswith(b"gitdir: ") or b"\0" in text:
        raise NoRepositoryError(f"invalid gitfile format: {_printable(dot_git)}")
    target = os.fsdecode(text[len(b"gitdir: ") :].rstrip(b"\r\n"))
    real = Path(os.path.realpath(dot_git.parent / target))
    if not _is_repository(real):
        raise NoRepositoryError(f"not a git repository: {_printable(real)}")
    return real


def _is_repository(own: Path) -> bool:
    try:
        _head(own)
    except NoRepositoryError:
        return False
    common = _common(own)
    return (common / "objects").is_dir() and (common / "refs").is_dir()


def _common(own: Path) -> Path:
    path = os.fsdecode((read(own / "commondir") or b"").rstrip(b"\r\n"))
    return Path(os.path.realpath(own / path)) if path and "\0" not in path else own


def _head(own: Path) -> re.Match[bytes]:
    """Match HEAD: group 1 is its target, group 2 its commit. Raises `NoRepositoryError` if it is not valid for git."""
    path = own / "HEAD"
    data = b"ref: " + os.fsencode(path.readlink()) if path.is_symlink() else read(path)
    match = _HEAD.fullmatch(data or b"")
    if match is None:
        raise NoRepositoryError(f"not a git repository: {_printable(own)}")
    return match


def _references(location: Location) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the object name of each reference, and the target of each symbolic reference."""
    objects: dict[bytes, bytes] = {}
    for line in (read(location.common / "packed-refs", _LARGE) or b"").splitlines():
        if match := _PACKED.fullmatch(line):
            objects[match[2]] = match[1]
    symbolic: dict[bytes, bytes] = {}
    for root in dict.fromkeys((location.common, location.own)):
        for directory, _, names in os.walk(root / "refs"):
            for name in names:
                path = Path(directory, name)
                match = _HEAD.fullmatch(read(path) or b"")
                reference = os.fsencode(path.relative_to(root))
                if match is not None and match[1]:
                    symbolic[reference] = match[1]
                elif match is not None:
                    objects[reference] = match[2]
    objects |= {name: objects[target] for name in symbolic if (target := _target(name, symbolic)) in objects}
    return {name: value for name, value in objects.items() if _REFERENCE.fullmatch(name)}, symbolic


def _target(name: bytes, symbolic: Mapping[bytes, bytes]) -> bytes:
    for _ in range(_MAX_LINKS):
        name = symbolic.get(name, name)
    return name


def _special_files(directory: str, depth: int = 3) -> Iterator[str]:
    """Yield the paths below a directory that are neither files nor directories, to the depth that git reads."""
    with os.scandir(directory) as listing:
        for item in listing:
            if item.is_dir():
                if depth:
                    yield from _special_files(item.path, depth - 1)
            elif not item.is_file() and os.path.exists(item.path):  # noqa: PTH110
                yield item.path
