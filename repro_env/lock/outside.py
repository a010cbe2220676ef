"""What the environment uses outside its prefix: folders on `sys.path`, editable projects, targets of symlinks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base.tree import LiveTree
from repro_env.capture import distributions, source
from repro_env.image.entry import Entry
from repro_env.image.layout import inside
from repro_env.io.files import Found, walk
from repro_env.lock import compose
from repro_env.lock.places import Place
from repro_env.model import redact
from repro_env.model.environment import Interpretation, Startup
from repro_env.model.errors import CaptureError

CAP = 200_000_000
"""Bytes of one folder outside the environment that is on `sys.path`; above it, somebody has to decide."""
MOST = 50_000
"""Files that the symlinks of an environment may lead to outside of it."""
_NAMED = 5
"""How many paths a line names before it counts the rest."""
IMPORTABLE = ("*.py", "*.so", "*.so.*")
"""Brought in even where git ignores them: a build writes `_version.py` and extensions, and the package imports them."""


class Outside(msgspec.Struct, frozen=True):
    """One folder outside the prefix, carried at its own absolute path."""

    root: Path
    """Real: no part of it is a symlink."""
    named: Path
    """As it is named, perhaps through symlinks, which are carried too."""
    found: tuple[Found, ...]
    left: str = ""
    """One line on what in it is not carried, or empty."""


def outside(facts: Interpretation, startup: Startup, places: Sequence[Place], workspace: Path) -> tuple[Outside, ...]:
    """What Python imports from, outside all places, interpreter and source. A zip file or egg comes with its folder's name."""
    covered = [Path(path) for path in (facts.interpreter.stdlib, facts.interpreter.platstdlib)]
    covered += [place.prefix / site for place in places for site in (place.layout.purelib, place.layout.platlib)]
    if facts.kind != "system":
        covered.append(Path(facts.layout.prefix))
    covered.append(workspace)
    covered += [Path(os.path.realpath(path)) for path in covered]
    found: list[Outside] = []
    whole: list[Path] = []
    for named in sorted(root for root in _roots(startup, places) if not _is_system(root)):
        named = _archive(named)
        root = Path(os.path.realpath(named))
        if any(named.is_relative_to(parent) for parent in covered) or not named.exists():
            continue
        if any(root.is_relative_to(parent) for parent in (*covered, *whole)):
            found += [Outside(root, named, ())] if named != root else []
        elif root.is_dir():
            tree = source.look(root, cap=CAP, include=IMPORTABLE, facts=False)
            found.append(Outside(root, named, tree.found, _left(root, tree)))
            whole.append(root)
        else:
            found.append(Outside(root.parent, named, tuple(walk(root.parent, skip=_all_but(root.name)))))
    return tuple(found)


def _archive(named: Path) -> Path:
    """The zip file that a `sys.path` entry is in (`libs.zip/lib`); any other path unchanged."""
    return next((parent for parent in named.parents if parent.is_file()), named)


def _left(root: Path, tree: source.SourceTree) -> str:
    """Caches, environments and version control are no part of a project; what git ignores may be read by its code."""
    paths = [one.path for one in tree.excluded if one.why.startswith(("git-ignored", "may hold secrets"))]
    rest = len(paths) - _NAMED
    shown = ", ".join(paths[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return redact.line(f"{root} is carried without what git ignores in it: {shown}") if paths else ""


def systems(startup: Startup, places: Sequence[Place]) -> tuple[str, ...]:
    """What is on `sys.path`, or named as an editable project, and is the system itself: nobody's code, and not carried."""
    return tuple(
        f"{root} is on sys.path: it is the system itself, not carried"
        for root in sorted(filter(_is_system, _roots(startup, places)))
    )


def _roots(startup: Startup, places: Sequence[Place]) -> set[Path]:
    roots = [path for path in startup.sys_path if path.startswith("/")]
    roots += [path for place in places for one in place.scanned.distributions if (path := distributions.project(one))]
    return {Path("/" + os.path.normpath(root).lstrip("/")) for root in roots}


def _is_system(root: Path) -> bool:
    return root == Path("/") or any(root.is_relative_to(folder) for folder in ("/proc", "/sys", "/dev"))


def _all_but(name: str) -> Callable[[str, bool], bool]:
    return lambda path, _is_dir: path != name


def linked(
    overlay: Sequence[Entry],
    places: Sequence[Place],
    held: Collection[str],
    roots: Sequence[Path],
    left: list[str] | None = None,
) -> LiveTree:
    """Targets of symlinks of the environment that nothing else holds. They are bundled at their own paths.

    `held` are the paths of the layers below, relative to `/`; `roots` are folders that a run shows at their own path.
    Raises `CaptureError` for a link to more than `CAP` bytes or `MOST` files; for a link outside of the places, `left` gets a
    line instead, because a project may link to data.
    """
    tree = LiveTree()
    prefixes = [(prefix, place) for place in places for prefix in {str(place.prefix), os.path.realpath(place.prefix)}]
    known = {f"{prefix}/{one.path}" for prefix, place in prefixes for one in place.found}
    known |= {prefix for prefix, _ in prefixes}
    size = count = 0
    for entry in overlay:
        if entry.kind != "link":
            continue
        here = on_host(entry.path, places)
        target = Path(os.path.normpath(here.parent / entry.target))
        real = Path(os.path.realpath(here))
        if not here.exists() or any(path.is_relative_to(root) for path in (target, real) for root in roots):
            continue
        if str(real) in known or inside(str(real)) in held:
            if str(target) not in known and inside(str(target)) not in held:
                tree.follow(str(target))  # the links on the way
            continue
        own = any(entry.path.startswith(f"{place.root}/") for place in places)
        before = size, count
        for one in walk(real) if real.is_dir() else ():
            size, count = size + one.size, count + 1
            if size > CAP or count > MOST:
                break
        size += real.stat().st_size
        if size > CAP or count > MOST:
            what = (
                f"is a symlink to {entry.target}, outside the environment, and has more than {CAP // 10**6} MB or {MOST:,} files"
            )
            if own or left is None:
                hint = "replace the symlink with the files that are needed, or give them to runs with --data"
                raise CaptureError(what, where=str(here), hint=hint)
            left.append(redact.line(f"{here} {what}: not held; give it to runs with --data {real}"))
            size, count = before
            continue
        if tree.follow(str(target)) is None:
            what = f"is a symlink to {entry.target}, which is not a file or directory that can be held"
            if own or left is None:
                raise CaptureError(what, where=str(here), hint="remove it from the environment and capture again")
            left.append(redact.line(f"{here} {what}"))
            continue
        if real.is_dir():
            tree.below(str(real), compose.Bytecode(real))
    return tree


def followed(overlay: Sequence[Entry], places: Sequence[Place], roots: Sequence[Path]) -> tuple[Entry, ...]:
    """The files that are carried only since a symlink of the environment leads to them; `roots` are carried for themselves."""
    own = tuple(f"{path}/" for path in (*(place.root for place in places), *(inside(str(root)) for root in roots)))
    return tuple(entry for entry in overlay if entry.kind == "file" and not entry.path.startswith(own))


def on_host(path: str, places: Sequence[Place]) -> Path:
    """Where a path of the image is on this machine."""
    for place in places:
        if path.startswith(place.root + "/"):
            return place.prefix / path[len(place.root) + 1 :]
    return Path("/", path)


def python_path(environ: Mapping[str, str]) -> str:
    """Absolute entries only: what a relative one means depends on where the caller stands."""
    return ":".join(part for part in environ.get("PYTHONPATH", "").split(":") if part.startswith("/"))
