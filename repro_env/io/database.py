"""SQLite databases that are caches: several processes may use them at once, and a lost one only costs time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def use(path: Path, action: Callable[[sqlite3.Connection], None], *, timeout: float) -> bool:
    """Call `action` with a connection. Errors of SQLite are ignored, and a damaged database is removed.

    Returns False if the database cannot be used now: it is locked for longer than `timeout` seconds, it is not a regular file, the
    disk is full, or the file system has no locks.
    """
    import sqlite3

    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return False  # SQLite would follow a link, or wait for a pipe
        with contextlib.closing(sqlite3.connect(path, timeout=timeout)) as db:
            db.execute("pragma temp_store = memory")
            db.execute("pragma synchronous = normal")
            action(db)
    except (OSError, sqlite3.OperationalError):
        return False
    except sqlite3.DatabaseError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return True
