"""The traces of two runs (`exec --trace`), read from their folders and held against each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from repro_env.catalog.records import TRACE
from repro_env.io.files import open_regular
from repro_env.verify import divergence, trace
from repro_env.verify.divergence import Compared
from repro_env.verify.trace import Trace

_MOST = 256 << 20
"""Bytes of one file that are read."""
_LINE = 16 << 20
"""Bytes of one line."""
_FILES = 4096
"""Processes of one run."""


class Traces(Mapping[str, Trace]):
    """By name of the file: one a process that trained. Each is read when it is asked for: a run of many processes has many."""

    def __init__(self, run: Path) -> None:
        found = sorted(path for path in (run / TRACE).glob("*.jsonl") if path.is_file() and not path.is_symlink())
        self._paths = {path.name: path for path in found[:_FILES]}
        self.left_out = len(found) - len(self._paths)
        """Files beyond the limit."""

    def __getitem__(self, name: str) -> Trace:
        return trace.parse(_lines(self._paths[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def compared(left: Path, right: Path) -> Compared | None:
    """Two runs by their folders. None where neither has a trace."""
    ours, theirs = Traces(left), Traces(right)
    if not ours and not theirs:
        return None
    found = divergence.compare(ours, theirs)
    more = [
        f"the {which} run has traces of {_FILES + one.left_out:,} processes: {one.left_out:,} of them were not read"
        for which, one in (("first", ours), ("second", theirs))
        if one.left_out
    ]
    return replace(found, missing=(*found.missing, *more))


def _lines(path: Path) -> Iterator[bytes]:
    """What is beyond the limits comes as one line that cannot be understood: the trace then has no end, and is never equal."""
    read = 0
    with os.fdopen(open_regular(path, below=path.parent.parent), "rb") as file:
        while line := file.readline(_LINE):
            read += len(line)
            if read > _MOST or (len(line) == _LINE and not line.endswith(b"\n")):
                yield b""
                return
            yield line
