"""Data named at capture: its digest, so that a run can tell whether it is still the same."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from repro_env.io.files import Found, read_regular, walk
from repro_env.io.hashes import FileHashes
from repro_env.model import codec, redact
from repro_env.model.errors import CaptureError, DataError
from repro_env.model.spec import Data, FileDigest
from repro_env.model.talk import Advance, Silent, Tell

_LONG = 256 << 20
"""Bytes to read from which on it is told."""
_MANY = 20_000
_LONG_IN_MANY = 16 << 20
"""Likewise, where they are in this many files."""
_SMALL = 1 << 20
"""Mean bytes of a file below which the disk is asked for several at a time: what counts then is how long one open takes."""
_PLACE = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+")
_CROISSANT = ("croissant.json", "*.croissant.json", "croissant*.json", "metadata.json")
_CROISSANT_LARGEST = 32 << 20
_NAMED = 3
"""How many paths a line names before it counts the rest."""


class Looked(msgspec.Struct, frozen=True):
    data: Data
    problems: tuple[str, ...]
    """What of it a run may not see, or the digest does not cover: one line each."""


def fingerprint(source: Path, target: str, hashes: FileHashes) -> Data:
    """`look`, of which only the facts are wanted."""
    return look(source, target, hashes).data


def look(source: Path, target: str, hashes: FileHashes, tell: Tell | None = None, *, like: Data | None = None) -> Looked:
    """Digest a file or a folder. `target` is the absolute path where it appears in a run.

    A file's digest is the sha256 of its bytes. A folder's is that of the sorted list of [path, kind, size, sha256 of a
    file or target of a symlink]: names and contents count, times, owners and modes do not. Raises `DataError`, also when
    something changes while it is read.

    `like`: what a spec says of data that nobody named. Then nothing is read of what has another size, and data that holds
    nothing, or a pipe, socket or device, is refused: its digest does not prove that whoever wrote the spec knew it.
    """
    root = Path(os.path.realpath(source))
    reading = _Reading(tell or Silent(), str(source))
    try:
        if not root.exists():
            raise DataError("no such data", where=str(source), hint="give the path of a file or folder with --data")
        if root.is_file():
            if like is not None:
                _check_size(source, 1, root.stat().st_size, like)
            return Looked(_file(root, target, hashes, reading), ())
        if not root.is_dir():
            raise DataError(
                "is neither a file nor a folder", where=str(source), hint="give the path of a file or folder with --data"
            )
        found = tuple(walk(root) if like is None else _alike(walk(root), source, like))
        known = reading.of(root, found, hashes)
        if reading.took_time:
            _check_unchanged(source, found, tuple(walk(root)))
        croissant = _croissant(root, found, known)
    except PermissionError as error:
        raise DataError("cannot be read", where=str(error.filename or source), hint="make it readable for you") from None
    except CaptureError as error:
        raise DataError(error.what, where=error.where or str(source), hint=error.hint) from None
    except FileNotFoundError as error:
        raise DataError("changed while it was read", where=str(error.filename or source), hint="try again") from None
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}", where=str(error.filename or source), hint="look at the disk"
        ) from None
    facts = Data(
        path=target,
        digest=codec.digest(sorted(_row(one, known) for one in found)),
        files=sum(one.kind == "file" for one in found),
        size=sum(one.size for one in found if one.kind == "file"),
        croissant=croissant,
    )
    return Looked(facts, tuple(_problems(target, root, found)))


def _alike(found: Iterable[Found], source: Path, like: Data) -> Iterator[Found]:
    """Pass a listing on. Raises `DataError` as soon as it cannot be what `like` describes."""
    files = size = 0
    for path in found:
        if path.kind == "other":
            raise DataError(
                "is a pipe, a socket or a device, which is shown only in data that you name", where=str(source / path.path)
            )
        files += path.kind == "file"
        size += path.size
        if files > like.files or size > like.size:
            break
        yield path
    _check_size(source, files, size, like)


def _check_size(source: Path, files: int, size: int, like: Data) -> None:
    if not size:
        raise DataError("is empty, and empty data is shown only when you name it", where=str(source))
    if (files, size) != (like.files, like.size):
        raise DataError(f"differs from the capture: it had {like.files:,} files with {like.size:,} bytes", where=str(source))


def check(pairs: Sequence[tuple[Path, str]]) -> None:
    """That what is named can all be mounted at once: (where it is, where it appears). Raises `DataError`."""
    seen: dict[str, Path] = {}
    for source, target in pairs:
        if not _PLACE.fullmatch(target):
            raise DataError(
                "is no absolute, normal path", where=f"--data {source}:{target}", hint="give it as --data SRC:/where/it/goes"
            )
        if target in seen:
            raise DataError(
                f"{seen[target]} is there already", where=f"--data {source}:{target}", hint="give one of them another DST"
            )
        seen[target] = source
    for target, source in seen.items():
        for outer, there in seen.items():
            if target.startswith(outer + "/") and not (there / target[len(outer) + 1 :]).exists():
                raise DataError(
                    f"lies in --data {there}, which has no {target[len(outer) + 1 :]} to put it over",
                    where=f"--data {source}:{target}",
                    hint="give it a DST beside the other, or make that folder",
                )


class _Reading:
    """Says that data is read, once it turns out to be much."""

    def __init__(self, tell: Tell, name: str) -> None:
        self._tell, self._name = tell, name
        self._total = self._files = 0
        self._calls = 0
        self._advance: Advance | None = None
        self._open = ExitStack()

    @property
    def took_time(self) -> bool:
        """Whether any file was read: what is known by its key alone takes no time in which something could change."""
        return self._calls > 1

    def __call__(self, count: int, /) -> None:
        self._calls += 1
        if self._calls == 2 and self._total > (_LONG_IN_MANY if self._files > _MANY else _LONG):
            self._advance = self._open.enter_context(self._tell.progress(self._total, f"reading data {self._name}"))
        if self._calls == 1:
            self._total -= count  # known from before
        elif self._advance is not None:
            self._advance(count)

    def of(self, root: Path, found: Sequence[Found], hashes: FileHashes) -> dict[str, str]:
        files = [one for one in found if one.kind == "file"]
        self._files, self._total = len(files), sum(one.size for one in files)
        cores = len(os.sched_getaffinity(0))
        workers = cores if self._total > _SMALL * len(files) else 4 * cores
        with self._open:
            return hashes.of(root, found, workers=workers, advance=self)


def _file(path: Path, target: str, hashes: FileHashes, reading: _Reading) -> Data:
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    found = Found(path.name, "file", False, facts.st_size, "", key)
    known = reading.of(path.parent, (found,), hashes)
    return Data(
        path=target,
        digest="sha256:" + known[path.name],
        files=1,
        size=facts.st_size,
        croissant=_croissant(path.parent, (found,), known),
    )


def _check_unchanged(source: Path, before: Iterable[Found], after: Iterable[Found]) -> None:
    """Each file was looked at while it was hashed; this is for what came, went or changed before and after that."""
    old, new = ({one.path: _state(one) for one in found} for found in (before, after))
    path = next((path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)), None)
    if path is not None:
        raise DataError("changed while it was read", where=str(source / path), hint="try again when nothing writes there")


def _state(one: Found) -> tuple[object, ...]:
    return (one.kind, one.target) if one.kind != "file" else (one.kind, *one.key[:4])


def _row(one: Found, known: dict[str, str]) -> tuple[str, str, int, str]:
    if one.kind == "file":
        return one.path, one.kind, one.size, known[one.path]
    return one.path, one.kind, 0, one.target


def _problems(target: str, root: Path, found: Sequence[Found]) -> Iterable[str]:
    strange = [one.path for one in found if one.kind == "other"]
    if strange:
        yield redact.line(f"data {target}: {_some(strange)}: a pipe, socket or device, held by its name alone")
    away = [one.path for one in found if one.kind == "link" and _leads_away(one, root)]
    if away:
        yield redact.line(
            f"data {target}: {_some(away)}: a symlink that leads out of it; what is there is not in the digest, and a run"
            " sees it only when it is mounted too"
        )


def _leads_away(link: Found, root: Path) -> bool:
    full = os.path.normpath(os.path.join(root, os.path.dirname(link.path), link.target))  # noqa: PTH118, PTH120
    return link.target.startswith("/") or not full.startswith(f"{root}/".replace("//", "/"))


def _some(found: Sequence[str]) -> str:
    rest = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _croissant(root: Path, found: Iterable[Found], known: dict[str, str]) -> tuple[FileDigest, ...]:
    """Files at the root that describe the data set in Croissant, MLCommons' vocabulary."""
    return tuple(
        FileDigest(path=one.path, sha256="sha256:" + known[one.path])
        for one in found
        if one.kind == "file"
        and "/" not in one.path
        and one.path.isprintable()
        and any(fnmatchcase(one.path, glob) for glob in _CROISSANT)
        and 0 < one.size <= _CROISSANT_LARGEST
        and _is_croissant(root / one.path)
    )


class _Described(msgspec.Struct):
    context: object = msgspec.field(default=None, name="@context")
    conforms_to: object = msgspec.field(default=None, name="conformsTo")


def _is_croissant(path: Path) -> bool:
    try:
        facts = msgspec.json.decode(read_regular(path, _CROISSANT_LARGEST), type=_Described)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return b"mlcommons.org/croissant" in codec.canonical([facts.context, facts.conforms_to])
