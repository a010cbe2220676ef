"""Compute the digest of data, so that a run can check whether the data changed since the capture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from repro_env.io.files import Found, walk
from repro_env.io.hashes import FileHashes
from repro_env.schema import codec, redact
from repro_env.schema.errors import CaptureError, DataError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Advance, Silent, Tell
from repro_env.schema.spec import Data

_LONG = 64 << 20
"""Above this number of bytes, progress is shown."""
_SMALL = 1 << 20
"""Mean file size in bytes below which more threads read, because opening the files takes most of the time."""
_TARGET = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+")


class DataResult(msgspec.Struct, frozen=True):
    data: Data
    problems: tuple[str, ...]
    """What a run may not see, or the digest does not cover: one line each."""


def fingerprint(source: Path, target: str, hashes: FileHashes) -> Data:
    """Return only the facts of `look`."""
    return look(source, target, hashes).data


def look(source: Path, target: str, hashes: FileHashes, tell: Tell | None = None, *, like: Data | None = None) -> DataResult:
    """Compute the digest of a file or a directory. `target` is the absolute path where it is mounted in a run.

    The digest of a file is the sha256 of its bytes. The digest of a directory is the sha256 of a sorted list of [path, kind,
    size, sha256 of a file or target of a symlink]. Names and contents count; times, owners and modes do not. Raises
    `DataError`, also if the data changes while it is read.

    `like`: the facts in a spec about data that the user did not name with an option. Then data of a different size is not
    read. Empty data, and data with a pipe, socket or device, is refused: its digest would not prove that the author of the
    spec had this data.
    """
    root = Path(os.path.realpath(source))
    reading = _Reading(tell or Silent(), str(source))
    try:
        if not root.exists():
            raise DataError(
                "this path does not exist", where=str(source), hint="give the path of a file or directory with --data"
            )
        if root.is_file():
            if like is not None:
                _check_size(source, 1, root.stat().st_size, like)
            return DataResult(_file(root, target, hashes, reading), ())
        if not root.is_dir():
            raise DataError(
                "this is neither a file nor a directory",
                where=str(source),
                hint="give the path of a file or directory with --data",
            )
        entries = tuple(walk(root) if like is None else _compare_sizes(walk(root), source, like))
        digests = reading.digests(root, entries, hashes)
        if reading.took_time:
            _check_unchanged(source, entries, tuple(walk(root)))
    except CaptureError as error:
        raise DataError(error.what, where=error.where or str(source), hint=error.hint) from None
    except FileNotFoundError as error:
        raise DataError("this file changed while it was read", where=str(error.filename or source), hint="try again") from None
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}",
            where=str(error.filename or source),
            hint="check its permissions and the disk, and try again",
        ) from None
    facts = Data(
        path=target,
        digest=codec.digest(sorted(_row(entry, digests) for entry in entries)),
        files=sum(entry.kind == "file" for entry in entries),
        size=sum(entry.size for entry in entries if entry.kind == "file"),
    )
    return DataResult(facts, tuple(_problems(target, root, entries)))


def _compare_sizes(entries: Iterable[Found], source: Path, like: Data) -> Iterator[Found]:
    """Yield the entries of a listing. Raises `DataError` as soon as it cannot be the data that `like` describes."""
    files = size = 0
    for entry in entries:
        if entry.kind == "other":
            raise DataError(
                "this is a pipe, socket or device, which is accepted only inside data that is named with --data",
                where=str(source / entry.path),
            )
        files += entry.kind == "file"
        size += entry.size
        if files > like.files or size > like.size:
            break
        yield entry
    _check_size(source, files, size, like)


def _check_size(source: Path, files: int, size: int, like: Data) -> None:
    if not size:
        raise DataError("is empty; name it with --data to use empty data", where=str(source))
    if (files, size) != (like.files, like.size):
        raise DataError(
            f"this differs from the captured data, which had {like.files:,} files with {like.size:,} bytes", where=str(source)
        )


def check(pairs: Sequence[tuple[Path, str]]) -> None:
    """Raise `DataError` unless all pairs (source, target path in the run) can be mounted together."""
    sources: dict[str, Path] = {}
    for source, target in pairs:
        where = f"--data {source}:{target}"
        if not _TARGET.fullmatch(target):
            raise DataError(
                "the target must be an absolute path without `.` or `..`", where=where, hint="for example --data SRC:/data/train"
            )
        if target in sources:
            raise DataError(f"{sources[target]} has the same target", where=where, hint="give one of them a different target")
        sources[target] = source
    for target, source in sources.items():
        for outer, directory in sources.items():
            inner = target[len(outer) + 1 :]
            if target.startswith(outer + "/") and not (directory / inner).exists():
                raise DataError(
                    f"the target is inside --data {directory}, which has no {inner}",
                    where=f"--data {source}:{target}",
                    hint=f"give a target outside {outer}, or create {directory / inner}",
                )


class _Reading:
    """Progress of reading data, shown only if there is much to read."""

    def __init__(self, tell: Tell, name: str) -> None:
        self._tell, self._name = tell, name
        self._total = self._calls = 0
        self._advance: Advance | None = None
        self._open = ExitStack()

    @property
    def took_time(self) -> bool:
        """Whether any file was read. If all digests were cached, the data had no time to change."""
        return self._calls > 1

    def __call__(self, count: int, /) -> None:
        self._calls += 1
        if self._calls == 2 and self._total > _LONG:
            self._advance = self._open.enter_context(self._tell.progress(self._total, f"reading data {self._name}"))
        if self._calls == 1:
            self._total -= count  # the first call counts the files with cached digests
        elif self._advance is not None:
            self._advance(count)

    def digests(self, root: Path, entries: Sequence[Found], hashes: FileHashes) -> dict[str, str]:
        files = [entry for entry in entries if entry.kind == "file"]
        self._total = sum(file.size for file in files)
        cores = len(os.sched_getaffinity(0))
        workers = cores if self._total > _SMALL * len(files) else 4 * cores
        with self._open:
            return hashes.of(root, entries, workers=workers, advance=self)


def _file(path: Path, target: str, hashes: FileHashes, reading: _Reading) -> Data:
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    entry = Found(path.name, "file", False, facts.st_size, "", key)
    digests = reading.digests(path.parent, (entry,), hashes)
    return Data(
        path=target,
        digest="sha256:" + digests[path.name],
        files=1,
        size=facts.st_size,
    )


def _check_unchanged(source: Path, before: Iterable[Found], after: Iterable[Found]) -> None:
    """Raise `DataError` if the two listings differ. This detects changes before and after a file was hashed."""
    old, new = ({entry.path: _state(entry) for entry in entries} for entries in (before, after))
    path = next((path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)), None)
    if path is not None:
        raise DataError(
            "this file changed while it was read", where=str(source / path), hint="try again when no program writes to it"
        )


def _state(entry: Found) -> tuple[object, ...]:
    return (entry.kind, entry.target) if entry.kind != "file" else (entry.kind, *entry.key[:4])


def _row(entry: Found, digests: dict[str, str]) -> tuple[str, str, int, str]:
    if entry.kind == "file":
        return entry.path, entry.kind, entry.size, digests[entry.path]
    return entry.path, entry.kind, 0, entry.target


def _problems(target: str, root: Path, entries: Sequence[Found]) -> Iterable[str]:
    special = [entry.path for entry in entries if entry.kind == "other"]
    if special:
        yield redact.line(f"data {target}: pipe, socket or device, recorded only by name: {shorten(special)}")
    links = [entry.path for entry in entries if entry.kind == "link" and _is_outside(entry, root)]
    if links:
        yield redact.line(
            f"data {target}: symlink to a path outside the data: {shorten(links)}; its target is not part of the digest, and a"
            " run sees it only if it is mounted too"
        )


def _is_outside(link: Found, root: Path) -> bool:
    full = os.path.normpath(os.path.join(root, os.path.dirname(link.path), link.target))  # noqa: PTH118, PTH120
    return link.target.startswith("/") or not full.startswith(f"{root}/".replace("//", "/"))
