"""What the environment uses outside its prefix: folders on `sys.path`, editable projects, targets of symlinks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.capture import distributions, source
from repro_env.image import stack
from repro_env.image.entry import Entry
from repro_env.image.layout import inside
from repro_env.io.files import Found, walk
from repro_env.model.environment import Interpretation, Startup
from repro_env.model.errors import CaptureError

CAP = 200_000_000
"""Bytes of one folder outside the environment that is on `sys.path`; above it, somebody has to decide."""
IMPORTABLE = ("*.py",)
"""Brought in even where git ignores them: a build writes `_version.py` and the like, and the package imports it."""


class Outside(msgspec.Struct, frozen=True):
    """One folder outside the prefix, carried at its own absolute path."""

    root: Path
    found: tuple[Found, ...]


def outside(facts: Interpretation, startup: Startup, scanned: distributions.Scan, workspace: Path) -> tuple[Outside, ...]:
    """What Python imports from, outside prefix, interpreter and source. A zip file or egg comes with its folder's name."""
    covered = [Path(path) for path in (facts.layout.prefix, facts.interpreter.stdlib, facts.interpreter.platstdlib)]
    covered.append(workspace)
    roots = [Path(path) for path in startup.sys_path if path.startswith("/")]
    roots += [Path(path) for one in scanned.distributions if (path := distributions.project(one))]
    found: list[Outside] = []
    for root in sorted({Path(os.path.normpath(root)) for root in roots}):
        if any(root.is_relative_to(parent) for parent in covered) or not root.exists():
            continue
        if any(root.is_relative_to(parent) for parent in (one.root for one in found)):
            continue
        if root.is_dir():
            found.append(Outside(root, source.look(root, cap=CAP, include=IMPORTABLE, facts=False).found))
        else:
            found.append(Outside(root.parent, tuple(walk(root.parent, skip=_all_but(root.name)))))
    return tuple(found)


def _all_but(name: str) -> Callable[[str, bool], bool]:
    return lambda path, _is_dir: path != name


def check_links(overlay: Sequence[Entry], prefix: Path, held: set[str], roots: Sequence[Path]) -> None:
    """A symlink of the environment must lead to something that the image holds, or to nothing on the host either.

    `held` are the paths of base and interpreter, relative to `/`; `roots` are folders that a run shows at their own path.
    """
    for entry in overlay:
        if entry.kind != "link":
            continue
        here = prefix / entry.path.removeprefix(stack.ROOT + "/")
        target = Path(os.path.normpath(here.parent / entry.target))
        if not here.exists() or any(target.is_relative_to(root) for root in (prefix, *roots)):
            continue
        if inside(str(target)) not in held and inside(os.path.realpath(target)) not in held:
            raise CaptureError(
                f"is a symlink to {entry.target}, which is outside the environment",
                where=str(here),
                hint="replace the link by the file, or install with copies (uv: --link-mode=copy)",
            )


def python_path(environ: Mapping[str, str]) -> str:
    """Absolute entries only: what a relative one means depends on where the caller stands."""
    return ":".join(part for part in environ.get("PYTHONPATH", "").split(":") if part.startswith("/"))
