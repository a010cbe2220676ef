"""Detect surprising behavior of an environment: unchecked bytecode, `.pth` lines that depend on positions, builds at import."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.io.files import Found, read_head
from repro_env.schema import redact
from repro_env.schema.environment import Layout
from repro_env.schema.messages import shorten

_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a .pyc file with an unchecked hash of its source (PEP 552)."""
_POSITION = re.compile(rb"sys\.path\.insert\(\s*-?[1-9]")
_LOADER = re.compile(r".+/_[^/]*editable[^/]*\.py")
_REBUILDS = re.compile(rb"^class MesonpyMetaFinder|^install\(.*, ['\"][^'\"]+['\"], True, ", re.MULTILINE)
"""Loaders of meson-python, and of scikit-build-core with `editable.rebuild`."""


def caveats(layout: Layout, found: Sequence[Found], cache_tag: str) -> tuple[str, ...]:
    """Return warnings for the user. `found`: the listing of the prefix, without bytecode."""
    prefix = Path(layout.prefix)
    sites = {layout.purelib, layout.platlib}
    files = [entry.path for entry in found if entry.kind == "file"]
    unchecked = sorted(path for path in files if path.endswith(".py") and _is_unchecked(prefix, path, cache_tag))
    lines = [
        f"{path} inserts a directory at a fixed position of sys.path, so the order may differ in the image"
        for path in files
        if path.endswith(".pth") and path.rpartition("/")[0] in sites and _contains(prefix / path, _POSITION)
    ]
    if unchecked:
        lines.append(
            f"Python runs bytecode of {shorten(unchecked)} here without checking the source "
            "(unchecked hash); the image runs the source"
        )
    lines += [
        f"{path} rebuilds the project at every import, but a run has no build tools; install the project without --editable"
        for path in sorted(files)
        if _LOADER.fullmatch(path) and _contains(prefix / path, _REBUILDS)
    ]
    return tuple(redact.line(line) for line in lines)


def _is_unchecked(prefix: Path, path: str, cache_tag: str) -> bool:
    directory, _, name = path.rpartition("/")
    return read_head(prefix / directory / "__pycache__" / f"{name[:-3]}.{cache_tag}.pyc", 8)[4:] == _UNCHECKED


def _contains(path: Path, pattern: re.Pattern[bytes]) -> bool:
    return pattern.search(read_head(path, 1 << 20)) is not None
