"""Find the site directories of an environment, and the files in and around them that belong to it.

A virtual environment or conda environment owns its whole prefix. A Python with its own prefix owns everything in it except
the interpreter layer. In a prefix that is shared (`/usr/local`, `~/.local`), only the site directories belong to the
environment, and the files that the RECORDs in them list.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.conda import metadata
from repro_env.environment.python import distributions
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.system import interpretertree
from repro_env.environment.system.tree import parent_directories, within
from repro_env.io.files import Found, walk
from repro_env.oci.paths import root_of
from repro_env.schema.environment import Interpretation, Layout

_NUMBA_SUFFIXES = ("nbi", "nbc")
"""Numba's caches depend on the modification times of the sources here; Numba recreates them."""
SITE_NAMES = ("site-packages", "dist-packages")
_PYTHON_DIRECTORY = re.compile(r"python\d*(?:\.\d+)?t?")
_LIBRARY = ("lib", "lib64")
_PYTHON = re.compile(r"python[\d.]*t?")
Skip = Callable[[str, bool], bool]


class Site(msgspec.Struct, frozen=True):
    """A site directory (site-packages or dist-packages) with its prefix, as it was found."""

    number: int
    """`Wheel.site`."""
    layout: Layout
    scanned: distributions.Scan
    found: tuple[Found, ...]
    """Its paths, without bytecode, relative to the prefix."""
    hashes: dict[str, str]
    """The sha256 (hex) of each file."""

    @property
    def root(self) -> str:
        """The prefix in the image, relative to the image's root."""
        return root_of(self.layout).lstrip("/")

    def owns(self, key: str) -> bool:
        """Whether the wheel or conda package with this key (`Wheel.key`) is installed here."""
        return key.endswith(f"@{self.number}") if self.number else "@" not in key

    @property
    def prefix(self) -> Path:
        return Path(self.layout.prefix)

    def is_own_python(self, path: str) -> bool:
        """Whether this path, from the first line of a script, is the environment's own python."""
        directory, name = posixpath.split(path)
        if self.layout.python is not None:
            return os.path.realpath(path) == os.path.realpath(self.layout.python)
        # The symlink is not resolved: a venv's python links to a Python that does not know the venv.
        own = os.path.realpath(self.prefix / self.layout.scripts)
        return _PYTHON.fullmatch(name) is not None and os.path.realpath(directory) == own

    def with_generated(self, generated: Mapping[str, bytes]) -> Site:
        """The site as if it contained these files, by path relative to the prefix."""
        live = {file.path: file for file in self.found}
        keys = {path: file.key for path, file in live.items()}
        changed = {
            path: Found(path, "file", False, len(data), "", keys.get(path, (0, 0, 0, 0, 0))) for path, data in generated.items()
        }
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in generated.items()}
        return msgspec.structs.replace(self, found=tuple((live | changed).values()), hashes=self.hashes | digests)

    def without_packaged(self, base_paths: Collection[str]) -> Site:
        """The site without distributions that belong to a system package: these are part of the base, not wheels."""
        own = (dist for dist in self.scanned.distributions if f"{self.root}/{dist.facts.dist_info}/METADATA" not in base_paths)
        return msgspec.structs.replace(self, scanned=msgspec.structs.replace(self.scanned, distributions=tuple(own)))


def other_sites(facts: Interpretation, startup: StartupReport) -> tuple[Layout, ...]:
    """The other site directories on `sys.path`: of the Python that the venv is based on, of the user, of the system."""
    own_directories = [os.path.realpath(path) for path in facts.layout.sites]
    environment = os.path.realpath(facts.layout.prefix) if facts.is_venv or facts.is_conda else None
    found: dict[tuple[str, str], list[str]] = {}
    for entry in startup.sys_path:
        directory = posixpath.normpath(entry)
        split = _split(directory)
        real_path = os.path.realpath(directory)
        if (
            split is None
            or real_path in own_directories
            or not Path(directory).is_dir()
            or (environment and real_path.startswith(environment + "/"))
        ):
            continue
        own_directories.append(real_path)
        prefix, relative = split
        # `lib/…` and `lib64/…` of the same Python are purelib and platlib of one site.
        found.setdefault((prefix, relative.partition("/")[2]), []).append(relative)
    return tuple(
        Layout(
            prefix=prefix,
            in_place=True,
            real=os.path.realpath(prefix) if os.path.realpath(prefix) != prefix else None,
            purelib=min(directories, key=len),
            platlib=max(directories, key=len),
            scripts="bin",
            headers=f"include/{directory.partition('/')[0]}",
            python=facts.interpreter.executable if facts.is_venv else facts.command,
        )
        for (prefix, directory), directories in found.items()
    )


def list_files(facts: Interpretation, layout: Layout, scanned: distributions.Scan) -> tuple[Found, ...]:
    """All paths of a site directory. Raises the same errors as `io.files.walk`."""
    return tuple(walk(Path(layout.prefix), skip=_skip(facts, layout, scanned)))


def _skip(facts: Interpretation, layout: Layout, scanned: distributions.Scan) -> Skip:
    """Skip bytecode, and outside the site directories what does not belong to the environment."""
    bytecode = Bytecode(Path(layout.prefix))
    if layout != facts.layout or facts.is_system:
        outside = _shared_prefix(layout, scanned)
    elif facts.kind == "interpreter":
        outside = _without_interpreter(facts, bytecode)
    elif facts.is_conda:
        unrelated = metadata.unrelated_directories(Path(layout.prefix))
        return lambda path, is_dir: path in unrelated or bytecode(path, is_dir)
    else:
        return bytecode
    directories = (layout.purelib, layout.platlib)
    return lambda path, is_dir: (bytecode if within(path, directories) else outside)(path, is_dir)


class Bytecode:
    """A `skip` for walks of `root` that excludes bytecode whose source exists: it is not part of the identity (design, section 5).

    Other files in a `__pycache__` are ordinary: data that a package stores there, or a module without source.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, frozenset[str]] = {}
        """Directory -> its file names."""

    def __call__(self, path: str, is_dir: bool) -> bool:
        directory, _, name = path.rpartition("/")
        if is_dir:
            return name == "__pycache__" and all(self._is_bytecode(directory, inner) for inner in self._in(path))
        parent, _, last = directory.rpartition("/")
        return last == "__pycache__" and self._is_bytecode(parent, name)

    def _is_bytecode(self, directory: str, name: str) -> bool:
        """Whether a file in the `__pycache__` of a directory is bytecode of an existing source file."""
        parts = name.split(".")
        if parts[-1] in _NUMBA_SUFFIXES:
            return True
        if parts[-1].isdigit():
            parts.pop()  # the temporary file of a killed Python: module.cpython-311.pyc.140234
        if parts[-1] != "pyc":
            return False
        sources = self._in(directory)
        return any(".".join(parts[:end]) + ".py" in sources for end in range(1, len(parts)))

    def _in(self, directory: str) -> frozenset[str]:
        if directory not in self._names:
            try:
                self._names[directory] = frozenset(os.listdir(self._root / directory))  # noqa: PTH208
            except OSError:
                self._names[directory] = frozenset()
        return self._names[directory]


def _shared_prefix(layout: Layout, scanned: distributions.Scan) -> Skip:
    """Skip all but the files that RECORDs list outside the site directories: scripts and data files."""
    files = {
        path
        for dist in scanned.distributions
        for path in dist.paths(layout.prefix)
        if not path.startswith(f"{dist.facts.site}/") and "__pycache__" not in path
    }
    parents = {parent for path in (layout.purelib, layout.platlib, *files) for parent in parent_directories(path)}
    return lambda path, is_dir: path not in (parents if is_dir else files)


def _without_interpreter(facts: Interpretation, bytecode: Skip) -> Skip:
    """Skip the standard library, headers and static libraries: they are in the interpreter's layer, or excluded by its rule."""
    prefix, python = facts.layout.prefix, facts.interpreter
    inner = tuple(f"{os.path.relpath(path, prefix)}/" for path in python.library)
    headers = f"include/{posixpath.basename(python.stdlib)}"
    parents = {parent for path in (facts.layout.purelib, facts.layout.platlib) for parent in parent_directories(path)}

    def skip(path: str, is_dir: bool) -> bool:
        if path.startswith(inner) or path == headers:
            return path not in parents
        return bytecode(path, is_dir) or (not is_dir and interpretertree.is_excluded(path, is_dir))

    return skip


def _split(directory: str) -> tuple[str, str] | None:
    """`/home/ann/.local/lib/python3.11/site-packages` -> (`/home/ann/.local`, `lib/python3.11/site-packages`)."""
    parts = directory.split("/")
    if len(parts) < 5 or parts[-1] not in SITE_NAMES or not _PYTHON_DIRECTORY.fullmatch(parts[-2]) or parts[-3] not in _LIBRARY:
        return None
    return "/".join(parts[:-3]), "/".join(parts[-3:])


def with_prefix(site: Site, lines: Sequence[str]) -> tuple[str, ...]:
    """Lines that begin with a path of the site; for all sites but the first, the path becomes absolute."""
    return tuple(lines) if site.number == 0 else tuple(f"{site.layout.prefix}/{line}" for line in lines)
