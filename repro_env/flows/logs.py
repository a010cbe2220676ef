"""What the command of a run printed, as the run's folder has it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from repro_env.catalog import records
from repro_env.io.files import open_regular
from repro_env.model.errors import RecordError
from repro_env.run import console

_READ = 1 << 16
_PAUSE = 0.2
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
"""Colours, moves of the cursor, titles of windows (ECMA-48)."""


def printed(folder: Path, *, follow: bool) -> Iterator[tuple[str, str]]:
    """The lines of every log: its name, and the text without colours. A line that was begun again is as it was last.

    With `follow` it goes on until the run in `folder` is over. Raises `RecordError` where there is no log that can be read.
    """
    offsets = dict.fromkeys(console.NAMES, 0)
    begun = dict.fromkeys(console.NAMES, b"")
    while True:
        is_over = not follow or not records.is_running(folder)
        there = []
        for name in console.NAMES:
            try:
                handle = open_regular(folder / name, below=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RecordError(f"cannot be read: {error.strerror}", where=str(folder / name), hint="inspect it") from None
            there.append(name)
            with os.fdopen(handle, "rb") as file:
                size = os.fstat(handle).st_size
                if size < offsets[name]:  # it was shortened in the middle
                    offsets[name] = size
                file.seek(offsets[name])
                while chunk := file.read(_READ):
                    offsets[name] += len(chunk)
                    *lines, begun[name] = (begun[name] + chunk).split(b"\n")
                    yield from ((name, _text(line)) for line in lines)
        if is_over:
            break
        time.sleep(_PAUSE)
    if not there:
        raise RecordError(
            "has no record of what its command printed", where=folder.name, hint="run it again, or look at its files"
        )
    yield from ((name, _text(line)) for name, line in begun.items() if line)


def _text(line: bytes) -> str:
    return _CONTROL.sub("", line.decode(errors="replace")).rstrip("\r").rpartition("\r")[2]
