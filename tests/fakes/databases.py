"""Real SQLite databases from the SQL that makes them."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path


def made(sql: str) -> bytes:
    """The file that SQLite itself writes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "made.db")
        opened = sqlite3.connect(path)
        opened.execute("PRAGMA synchronous = OFF")
        opened.executescript(sql)
        opened.commit()
        opened.close()
        return path.read_bytes()
