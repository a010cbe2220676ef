"""Find what the environment uses outside its prefix: directories on `sys.path`, editable projects, targets of symlinks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.python import distributions
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.python.sites import Bytecode, Site
from repro_env.environment.source import selection
from repro_env.environment.system.tree import LiveTree
from repro_env.io.files import Found, walk
from repro_env.oci.entry import Entry
from repro_env.oci.paths import inside
from repro_env.schema import redact
from repro_env.schema.environment import Interpretation
from repro_env.schema.errors import CaptureError
from repro_env.schema.messages import shorten

MAX_SIZE = 200_000_000
"""Bytes of one directory on `sys.path` outside the environment; larger directories are an error."""
MAX_FILES = 50_000
"""The maximum number of files outside an environment that its symlinks may lead to."""
IMPORTABLE = ("*.py", "*.so", "*.so.*")
"""Included even if git ignores them: a build writes `_version.py` and extensions, and the package imports them."""


class ExternalPath(msgspec.Struct, frozen=True):
    """A directory outside the prefix, bundled at its own absolute path."""

    root: Path
    """The real path, without symlinks."""
    named: Path
    """The path as it is named; the symlinks in it are bundled too."""
    found: tuple[Found, ...]
    excluded: str = ""
    """A line about content that is not bundled, or empty."""

    @property
    def is_complete(self) -> bool:
        """Whether the whole directory is bundled, and not only an archive in it."""
        return self.named.is_dir()


def find_external_paths(
    facts: Interpretation, startup: StartupReport, sites: Sequence[Site], workspace: Path
) -> tuple[ExternalPath, ...]:
    """The paths that Python imports from outside the sites, the interpreter and the source.

    For a zip file or egg, `root` is its directory.
    """
    others = (path for site in sites[1:] for path in site.layout.sites)
    covered = [*map(Path, (*facts.directories, *others)), workspace]
    covered += [Path(os.path.realpath(path)) for path in covered]
    external_paths: list[ExternalPath] = []
    complete: list[Path] = []
    for path in sorted(root for root in _roots(startup, sites) if not _is_system(root)):
        path = next((parent for parent in path.parents if parent.is_file()), path)  # the zip file of `libs.zip/lib`
        root = Path(os.path.realpath(path))
        if any(path.is_relative_to(parent) for parent in covered) or not path.exists():
            continue
        if any(root.is_relative_to(parent) for parent in (*covered, *complete)):
            external_paths += [ExternalPath(root, path, ())] if path != root else []
        elif root.is_dir():
            tree = selection.look(root, cap=MAX_SIZE, include=IMPORTABLE, facts=False)
            external_paths.append(ExternalPath(root, path, tree.found, _describe_excluded(root, tree)))
            complete.append(root)
        else:
            external_paths.append(ExternalPath(root.parent, path, tuple(walk(root.parent, skip=_all_but(root.name)))))
    return tuple(external_paths)


def _describe_excluded(root: Path, tree: selection.SourceTree) -> str:
    """A line that names the git-ignored files in a directory. Caches, environments and version control are not mentioned."""
    paths = [row.path for row in tree.excluded if row.why.startswith(("git-ignored", "may hold secrets"))]
    return redact.line(f"{root} is bundled without the files that git ignores: {shorten(paths)}") if paths else ""


def system_paths(startup: StartupReport, sites: Sequence[Site]) -> tuple[str, ...]:
    """A line for each path on `sys.path`, or editable project, that belongs to the operating system and is not bundled."""
    own = {Path(path) for site in sites for path in site.layout.sites}
    return tuple(
        f"{root} is on sys.path; it belongs to the operating system and is not bundled"
        for root in sorted(filter(_is_system, _roots(startup, sites) - own))
    )


def _roots(startup: StartupReport, sites: Sequence[Site]) -> set[Path]:
    roots = [path for path in startup.sys_path if path.startswith("/")]
    roots += [path for site in sites for dist in site.scanned.distributions if (path := distributions.project(dist))]
    return {Path("/" + os.path.normpath(root).lstrip("/")) for root in roots}


def _is_system(root: Path) -> bool:
    return root == Path("/") or any(root.is_relative_to(directory) for directory in ("/proc", "/sys", "/dev"))


def _all_but(name: str) -> Callable[[str, bool], bool]:
    return lambda path, _is_dir: path != name


def collect_link_targets(
    overlay: Sequence[Entry],
    sites: Sequence[Site],
    lower: Collection[str],
    roots: Sequence[Path],
    skipped: list[str],
) -> LiveTree:
    """Collect the targets of symlinks of the environment that no other layer contains. They are bundled at their own paths.

    `lower`: the paths of the lower layers, relative to `/`; `roots`: directories that a run sees at their own path. Raises
    `CaptureError` for a link of a site to more than `MAX_SIZE` bytes or `MAX_FILES` files. A link elsewhere, as a project may
    have to its data, is skipped instead, with a line in `skipped`.
    """
    tree = LiveTree()
    prefixes = [(prefix, site) for site in sites for prefix in {str(site.prefix), os.path.realpath(site.prefix)}]
    site_paths = {f"{prefix}/{file.path}" for prefix, site in prefixes for file in site.found}
    site_paths |= {prefix for prefix, _ in prefixes}
    size = count = 0
    for entry in overlay:
        if entry.kind != "link":
            continue
        here = on_host(entry.path, sites)
        target = Path(os.path.normpath(here.parent / entry.target))
        real = Path(os.path.realpath(here))
        if not here.exists() or any(path.is_relative_to(root) for path in (target, real) for root in roots):
            continue
        if str(real) in site_paths or inside(str(real)) in lower:
            if str(target) not in site_paths and inside(str(target)) not in lower:
                tree.follow(str(target))  # only to collect the links on the way
            continue
        total, number = size, count
        for file in walk(real) if real.is_dir() else ():
            total, number = total + file.size, number + 1
            if total > MAX_SIZE or number > MAX_FILES:
                break
        total += real.stat().st_size
        problem = ""
        if total > MAX_SIZE or number > MAX_FILES:
            problem = f"which has more than {MAX_SIZE // 10**6} MB or {MAX_FILES:,} files"
        elif tree.follow(str(target)) is None:
            problem = "which is not a file or directory that can be captured"
        if problem:
            problem = f"is a symlink to {entry.target}, outside the environment, {problem}"
            if any(entry.path.startswith(f"{site.root}/") for site in sites):
                hint = "replace the symlink by the files that are needed, or provide them to runs with --data"
                raise CaptureError(f"this file {problem}", where=str(here), hint=hint)
            skipped.append(redact.line(f"{here} {problem}: not captured; provide it to runs with --data {real}"))
            continue
        size, count = total, number
        if real.is_dir():
            tree.add_directory(str(real), Bytecode(real))
    return tree


def on_host(path: str, sites: Sequence[Site]) -> Path:
    """The path on this machine of a path in the image."""
    for site in sites:
        if path.startswith(site.root + "/"):
            return site.prefix / path[len(site.root) + 1 :]
    return Path("/", path)


def python_path(environ: Mapping[str, str]) -> str:
    """The absolute entries of PYTHONPATH; the meaning of relative ones depends on the working directory."""
    return ":".join(part for part in environ.get("PYTHONPATH", "").split(":") if part.startswith("/"))
