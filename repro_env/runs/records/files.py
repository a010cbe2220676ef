"""Write the files of a record."""

from __future__ import annotations

import stat
from pathlib import Path

from repro_env.io.files import atomic_write, expect, room
from repro_env.schema.errors import RecordError, os_errors_as


def write_once(path: Path, data: bytes, what: str = "the record of the run") -> None:
    """Write a read-only file to the directory of a run, or to a directory in it, which is created if missing.

    Raises `RecordError` if it cannot be written, and `DiskError`.
    """
    hint = "check the permissions of the directory and the free space of the disk"
    with os_errors_as(RecordError, f"{what} cannot be written", default=path, hint=hint):
        with room(path.parent.parent):
            path.parent.mkdir(exist_ok=True)
        expect(path.parent.lstat().st_mode, stat.S_IFDIR, str(path.parent))
        atomic_write(path, data)
        path.chmod(0o444)
