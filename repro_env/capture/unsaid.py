"""What an environment does that its files do not say: bytecode that Python trusts blindly, `.pth` lines that count positions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.io.files import Found
from repro_env.model import redact
from repro_env.model.environment import Layout

_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a .pyc that is bound to its source by a hash that nobody checks (PEP 552)."""
_POSITION = re.compile(rb"sys\.path\.insert\(\s*-?[1-9]")
_LOADER = re.compile(r".+/_[^/]*editable[^/]*\.py")
_BUILDS = re.compile(rb"^class MesonpyMetaFinder|^install\(.*, ['\"][^'\"]+['\"], True, ", re.MULTILINE)
"""Loaders of meson-python, and of scikit-build-core with `editable.rebuild`."""
_SHOWN = 3


def unsaid(layout: Layout, found: Sequence[Found], cache_tag: str) -> tuple[str, ...]:
    """Lines for the user; one folder of bytecode is looked into for each source. `found` is the prefix without bytecode."""
    prefix = Path(layout.prefix)
    sites = {layout.purelib, layout.platlib}
    blind = [one.path for one in found if one.kind == "file" and one.path.endswith(".py") and _blind(prefix, one.path, cache_tag)]
    counting = [
        one.path
        for one in found
        if one.kind == "file"
        and one.path.endswith(".pth")
        and one.path.rpartition("/")[0] in sites
        and _counts(prefix / one.path)
    ]
    lines = [f"{path} puts a folder at a position of sys.path by code: inside, the order may be another one" for path in counting]
    if blind:
        rest = f" and {len(blind) - _SHOWN} more" if len(blind) > _SHOWN else ""
        lines.append(
            f"{', '.join(sorted(blind)[:_SHOWN])}{rest}: Python runs bytecode here without a look at the source "
            "(unchecked hash); the image runs the source"
        )
    lines += [
        f"{path} builds the project again at every import, and a run has no build tools: install the project without --editable"
        for path in sorted(
            one.path for one in found if one.kind == "file" and _LOADER.fullmatch(one.path) and _builds(prefix, one.path)
        )
    ]
    return tuple(redact.line(line) for line in lines)


def _blind(prefix: Path, path: str, cache_tag: str) -> bool:
    folder, _, name = path.rpartition("/")
    try:
        with (prefix / folder / "__pycache__" / f"{name[:-3]}.{cache_tag}.pyc").open("rb", buffering=0) as file:
            return file.read(8)[4:] == _UNCHECKED
    except OSError:
        return False


def _builds(prefix: Path, path: str) -> bool:
    try:
        with (prefix / path).open("rb") as file:
            return _BUILDS.search(file.read(1 << 20)) is not None
    except OSError:
        return False


def _counts(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _POSITION.search(file.read(1 << 20)) is not None
    except OSError:
        return False
