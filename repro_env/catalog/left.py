"""What a run left in the user's own folders of checkpoints: two lists beside its record (`flows.before` writes them).

Files that are in the list after the run and were not, or were others, in the list before it. Another process may have
written there at the same time: that they are the run's own is likely, not proven.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from repro_env.catalog.records import LARGEST
from repro_env.io.files import read_regular
from repro_env.model.run import End, Start

_BEFORE = "checkpoints-before.json"
_AFTER = "checkpoints-after.json"


class File(msgspec.Struct, frozen=True):
    target: str
    """Of the mount, as the run saw it."""
    path: str
    """In it; empty where the mount is itself a file."""
    sha256: str

    @property
    def shown(self) -> str:
        return f"{self.target}/{self.path}" if self.path else self.target


class _List(msgspec.Struct, frozen=True):
    files: tuple[File, ...]


def left(folder: Path, start: Start, end: End | None) -> tuple[File, ...]:
    """In the order of the list. Nothing where a list is not the one that the record means, or cannot be read."""
    if end is None or end.after is None:
        return ()
    after = _read(folder / _AFTER, end.after)
    before = _List(()) if start.before is None else _read(folder / _BEFORE, start.before)
    if after is None or before is None:
        return ()
    old = {one.shown: one.sha256 for one in before.files}
    return tuple(one for one in after.files if old.get(one.shown) != one.sha256)


def _read(path: Path, digest: str) -> _List | None:
    try:
        data = read_regular(path, LARGEST)
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            return None
        return msgspec.json.decode(data, type=_List)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
