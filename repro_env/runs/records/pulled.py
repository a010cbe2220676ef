"""What a pulled run does not have: `pulled.json` in its directory. It is not part of the record, and changes with the next pull.

Without it, a recorded output that is missing is an output that was lost.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from repro_env.io.files import atomic_write, read_regular
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RecordError, os_errors_as
from repro_env.schema.rundirectory import PULLED
from repro_env.schema.text import Line

_FAMILY = "repro-env/pulled"
_LARGEST = 256 << 20


class Pulled(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/pulled/1"] = "repro-env/pulled/1"
    source: Line
    """The catalog: a directory, or HOST/NAME."""
    left_out: tuple[Line, ...] = ()
    """The recorded outputs that are not here, by path, and the lines of `End.others` that are links. Sorted."""

    def why(self, name: str, run: str) -> str:
        """Why an output is missing, and how to get it; empty if it was not left out. `run`: the short ID."""
        if name not in self.left_out:
            return ""
        if " -> " in name:
            return "symbolic links are not pulled"
        return f"it was left out when the run was pushed or pulled (repro-env runs pull {shlex.quote(self.source)} {run} --outputs all)"


def write(directory: Path, pulled: Pulled) -> None:
    """Write `pulled.json` to the directory of a run. Raises `OSError`, `DiskError`."""
    atomic_write(directory / PULLED, codec.pretty(pulled))


def read(directory: Path) -> Pulled | None:
    """Read `pulled.json`; None for a run that was not pulled. Raises `SpecError`, `RecordError` if it cannot be read."""
    path = directory / PULLED
    hint = "give yourself permission to read it, or remove it: missing outputs are then reported as gone"
    with os_errors_as(RecordError, "the file cannot be read", where=path, hint=hint):
        try:
            data = read_regular(path, _LARGEST)
        except FileNotFoundError:
            return None
    codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
    return codec.decode(data, Pulled, where=str(path))
