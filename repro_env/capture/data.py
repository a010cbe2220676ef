"""Data named at capture: its digest, so that a run can tell whether it is still the same."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.io.files import Found, walk
from repro_env.io.hashes import FileHashes
from repro_env.model import codec
from repro_env.model.errors import CaptureError, DataError
from repro_env.model.spec import Data


def fingerprint(source: Path, target: str, hashes: FileHashes) -> Data:
    """Digest a file or a folder. `target` is the absolute path where it appears in a run.

    A file's digest is the sha256 of its bytes. A folder's is that of the sorted list of [path, kind, size, sha256 of a
    file or target of a symlink]: names and contents count, times, owners and modes do not. Raises `DataError`.
    """
    root = Path(os.path.realpath(source))
    if not root.exists():
        raise DataError("no such data", where=str(source), hint="give the path of a file or folder with --data")
    if not root.is_dir() and not root.is_file():
        raise DataError("is neither a file nor a folder", where=str(source), hint="give the path of a file or folder with --data")
    try:
        if root.is_file():
            return _file(root, target, hashes)
        found = tuple(walk(root))
        known = hashes.of(root, found)
    except PermissionError as error:
        raise DataError("cannot be read", where=str(error.filename or source), hint="make it readable for you") from None
    except CaptureError as error:
        raise DataError(error.what, where=error.where or str(source), hint=error.hint) from None
    except FileNotFoundError as error:
        raise DataError("changed while it was read", where=str(error.filename or source), hint="try again") from None
    rows = sorted(_row(one, known) for one in found)
    return Data(
        path=target,
        digest=codec.digest(rows),
        files=sum(one.kind == "file" for one in found),
        size=sum(one.size for one in found if one.kind == "file"),
    )


def _file(path: Path, target: str, hashes: FileHashes) -> Data:
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    found = Found(path.name, "file", False, facts.st_size, "", key)
    return Data(path=target, digest="sha256:" + hashes.of(path.parent, (found,))[path.name], files=1, size=facts.st_size)


def _row(one: Found, known: dict[str, str]) -> tuple[str, str, int, str]:
    if one.kind == "file":
        return one.path, one.kind, one.size, known[one.path]
    return one.path, one.kind, 0, one.target
