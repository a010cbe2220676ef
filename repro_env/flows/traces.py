"""The traces of a run (`exec --trace`), read from its folder."""

from __future__ import annotations

from pathlib import Path

from repro_env.catalog.records import TRACE
from repro_env.verify import trace
from repro_env.verify.trace import Trace

_MOST = 256 << 20
"""Bytes of one file that are read."""
_FILES = 4096


def read(run: Path) -> dict[str, Trace]:
    """By name of the file: one a process that trained. Empty for a run without a trace."""
    found = sorted(path for path in (run / TRACE).glob("*.jsonl") if path.is_file() and not path.is_symlink())
    traces = {}
    for path in found[:_FILES]:
        with path.open("rb") as file:
            # A line that is cut off at the end counts as one that is not understood.
            traces[path.name] = trace.parse(file.read(_MOST).splitlines())
    return traces
