"""Write the files of a record."""

from __future__ import annotations

import stat
from pathlib import Path

from repro_env.io.files import atomic_write, expect, room
from repro_env.schema.errors import RecordError


def write_once(path: Path, data: bytes, what: str = "the record of the run") -> None:
    """Write a read-only file to the directory of a run, or to a directory in it, which is created if missing.

    Raises `RecordError` if it cannot be written, and `DiskError`.
    """
    try:
        with room(path.parent.parent):
            path.parent.mkdir(exist_ok=True)
        expect(path.parent.lstat().st_mode, stat.S_IFDIR, str(path.parent))
        atomic_write(path, data)
        path.chmod(0o444)
    except OSError as error:
        raise RecordError(
            f"{what} cannot be written: {error.strerror}",
            where=str(error.filename or path),
            hint="check the permissions of the directory and the free space of the disk",
        ) from None
