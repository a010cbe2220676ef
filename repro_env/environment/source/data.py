"""Compute the digest of data, so that a run can check whether the data changed since the capture."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import Found, entry_at, walk
from repro_env.schema import codec, redact
from repro_env.schema.errors import CaptureError, DataError, os_errors_as
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Silent, Tell
from repro_env.schema.spec import Data
from repro_env.store.hashes import FileHashes

_SMALL = 1 << 20
"""Mean size in bytes below which more threads read, because opening the files takes most of the time."""


class DataResult(msgspec.Struct, frozen=True):
    data: Data
    problems: tuple[str, ...]
    """What a run may not see, or the digest does not cover: one line each."""


def look(source: Path, target: str, hashes: FileHashes, tell: Tell | None = None, *, like: Data | None = None) -> DataResult:
    """Compute the digest of a file or a directory. `target` is the absolute path where it is mounted in a run.

    The digest of a file is the sha256 of its bytes. The digest of a directory is the sha256 of a sorted list of [path, kind,
    size, sha256 of a file or target of a symlink]. Names and contents count; times, owners and modes do not. Raises
    `DataError`, also if a file changes while it is read.

    `like`: the facts in a spec about data that the user did not name with an option. Then data of a different size is not
    read. Empty data, and data with a pipe, socket or device, is refused: its digest would not prove that the author of the
    spec had this data.
    """
    root = Path(os.path.realpath(source))
    with os_errors_as(DataError, "cannot be read", default=source, hint="check its permissions and the disk, and try again"):
        try:
            if not root.is_file() and not root.is_dir():
                what = "this is neither a file nor a directory" if root.exists() else "this path does not exist"
                raise DataError(what, where=str(source), hint="give the path of a file or directory with --data")
            is_file = root.is_file()
            directory = root.parent if is_file else root
            listing = iter([entry_at(str(root), root.name)]) if is_file else walk(root)
            entries = tuple(listing if like is None else _compare_sizes(listing, source, like))
            digests = _hash(directory, entries, hashes, tell or Silent(), f"reading data {source}")
        except CaptureError as error:
            raise DataError(error.what, where=error.where or str(source), hint=error.hint) from None
        except FileNotFoundError as error:
            where = str(error.filename or source)
            raise DataError("this file changed while it was read", where=where, hint="try again") from None
    rows = sorted((entry.path, entry.kind, entry.size, digests.get(entry.path, entry.target)) for entry in entries)
    facts = Data(
        path=target,
        digest="sha256:" + digests[root.name] if is_file else codec.digest(rows),
        files=len(digests),
        size=sum(entry.size for entry in entries),
    )
    return DataResult(facts, () if is_file else tuple(_problems(target, root, entries)))


def _hash(root: Path, entries: Sequence[Found], hashes: FileHashes, tell: Tell, label: str) -> dict[str, str]:
    """Return the sha256 of each file, by path."""
    total = sum(entry.size for entry in entries)
    cores = len(os.sched_getaffinity(0))
    workers = cores if total > _SMALL * len(entries) else 4 * cores
    with tell.progress(total, label) as advance:
        return hashes.of(root, entries, workers=workers, advance=advance)


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
    if not size:
        raise DataError("is empty; name it with --data to use empty data", where=str(source))
    if (files, size) != (like.files, like.size):
        raise DataError(
            f"this differs from the captured data, which had {like.files:,} files with {like.size:,} bytes", where=str(source)
        )


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
