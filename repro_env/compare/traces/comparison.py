"""Read and compare the traces of two runs (`exec --trace`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from repro_env.compare.traces import divergence, trace
from repro_env.compare.traces.divergence import Comparison
from repro_env.compare.traces.trace import Trace
from repro_env.io.files import open_regular
from repro_env.schema.rundirectory import TRACE

_MOST = 256 << 20
"""Most bytes of a file that are read."""
_LINE = 16 << 20
"""Most bytes of a line."""
_FILES = 4096
"""Most processes of a run."""


class Traces(Mapping[str, Trace]):
    """The traces of a run by file name, one for each process that trained. A trace is read when it is accessed."""

    def __init__(self, run: Path) -> None:
        found = sorted(path for path in (run / TRACE).glob("*.jsonl") if path.is_file() and not path.is_symlink())
        self._paths = {path.name: path for path in found[:_FILES]}
        self.skipped = len(found) - len(self._paths)
        """Files beyond the limit."""

    def __getitem__(self, name: str) -> Trace:
        return trace.parse(_lines(self._paths[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def compare_traces(left: Path, right: Path) -> Comparison | None:
    """Compare the traces of the runs in two directories; return None if neither has a trace."""
    first, second = Traces(left), Traces(right)
    if not first and not second:
        return None
    found = divergence.compare(first, second)
    more = [
        f"the {which} run has traces of {_FILES + traces.skipped:,} processes, of which only {_FILES:,} were read"
        for which, traces in (("first", first), ("second", second))
        if traces.skipped
    ]
    return replace(found, missing=(*found.missing, *more))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a trace. Beyond the limits, yield an invalid line, so that the trace has no end and equals no other."""
    read = 0
    with os.fdopen(open_regular(path, below=path.parent.parent), "rb") as file:
        while line := file.readline(_LINE):
            read += len(line)
            if read > _MOST or (len(line) == _LINE and not line.endswith(b"\n")):
                yield b""
                return
            yield line
