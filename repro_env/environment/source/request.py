"""Which code and data a capture is to have, with the options of `capture` for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from repro_env.schema.options import Option


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Which code and data the user requested. Paths are absolute."""

    source: Path
    output: Path
    """The directory of the spec."""
    include: Annotated[
        tuple[str, ...],
        Option("Capture these files of the source even if Git ignores them. Repeatable.", "GLOB", project=True),
    ] = ()
    exclude: Annotated[tuple[str, ...], Option("Leave these files out of the source. Repeatable.", "GLOB", project=True)] = ()
    not_secret: Annotated[
        tuple[str, ...],
        Option(
            "Capture these files even if they seem to contain a secret. Repeatable.",
            "GLOB",
            refusal="it could capture a secret of yours",
        ),
    ] = ()
    """Globs of files that contain no secret although they look like it."""
    data: tuple[tuple[Path, str], ...] = ()
    """(path on this machine, path in runs)."""
