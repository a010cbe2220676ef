"""The places that distributions are installed to, and which paths of each belong to the environment.

A virtual environment or conda environment is its whole prefix, and so is a Python that has a prefix of its own, but for
what the interpreter's own layer holds. Of a prefix that others share (`/usr/local`, `~/.local`) only the site folders
belong to it, and what the distributions in them list in their RECORD.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import interpreter
from repro_env.capture import conda, distributions
from repro_env.image.layout import root_of
from repro_env.io.files import Found, walk
from repro_env.lock import compose
from repro_env.model.environment import Interpretation, Layout, Startup

SITES = ("site-packages", "dist-packages")
_FOLDER = re.compile(r"python\d*(?:\.\d+)?t?")
_LIBRARY = ("lib", "lib64")
_PYTHON = re.compile(r"python[\d.]*t?")
Skip = Callable[[str, bool], bool]


class Place(msgspec.Struct, frozen=True):
    """One place, as it was found."""

    number: int
    """`Wheel.place`."""
    layout: Layout
    scanned: distributions.Scan
    found: tuple[Found, ...]
    """Its paths but bytecode, relative to the prefix."""
    hashes: dict[str, str]
    """sha256 (hex) of its files."""
    state: str
    """`io.files.fingerprint` of what was found."""
    settled: bool
    """Whether the state decides the hashes (`io.hashes.settled`)."""

    @property
    def root(self) -> str:
        """Where the image holds the prefix, relative to the image's root."""
        return root_of(self.layout).lstrip("/")

    def owns(self, key: str) -> bool:
        """Whether a wheel or conda package of this key (`Wheel.key`) is installed here."""
        return key.endswith(f"@{self.number}") if self.number else "@" not in key

    @property
    def prefix(self) -> Path:
        return Path(self.layout.prefix)

    def starts(self, path: str) -> bool:
        """Whether a script whose first line names this path is started by the environment's own python."""
        folder, name = posixpath.split(path)
        if self.layout.python is not None:
            return os.path.realpath(path) == os.path.realpath(self.layout.python)
        # Not resolved to its end: a venv's python is a symlink to one that knows nothing of the venv.
        own = os.path.realpath(self.prefix / self.layout.scripts)
        return _PYTHON.fullmatch(name) is not None and os.path.realpath(folder) == own

    def with_made(self, made: Mapping[str, bytes]) -> Place:
        """The place as if it held these files, by path relative to the prefix."""
        live = {one.path: one for one in self.found}
        changed = {path: _made(path, data, live.get(path)) for path, data in made.items()}
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in made.items()}
        return msgspec.structs.replace(self, found=tuple((live | changed).values()), hashes=self.hashes | digests)


def _made(path: str, data: bytes, live: Found | None) -> Found:
    return Found(path, "file", False, len(data), "", live.key if live is not None else (0, 0, 0, 0, 0))


def others(facts: Interpretation, startup: Startup) -> tuple[Layout, ...]:
    """Site folders on `sys.path` that are not the environment's own: of the Python below it, of the user, of the system."""
    own = [os.path.realpath(path) for path in _sites(facts.layout)]
    whole = os.path.realpath(facts.layout.prefix) if facts.kind in ("venv", "conda") else None
    found: list[Layout] = []
    for entry in startup.sys_path:
        folder = posixpath.normpath(entry)
        split = _split(folder)
        real = os.path.realpath(folder)
        if split is None or real in own or not Path(folder).is_dir() or (whole and real.startswith(whole + "/")):
            continue
        own.append(real)
        prefix, site = split
        twin = next((one for one in found if one.prefix == prefix and _twins(one.purelib, site)), None)
        if twin is not None:
            lib, lib64 = sorted((twin.purelib, site), key=len)
            found[found.index(twin)] = msgspec.structs.replace(twin, purelib=lib, platlib=lib64)
            continue
        found.append(
            Layout(
                prefix=prefix,
                in_place=True,
                real=os.path.realpath(prefix) if os.path.realpath(prefix) != prefix else None,
                purelib=site,
                platlib=site,
                scripts="bin",
                headers=f"include/{site.split('/')[1]}",
                python=facts.interpreter.executable if facts.kind == "venv" else facts.command,
            )
        )
    return tuple(found)


def listed(facts: Interpretation, layout: Layout, scanned: distributions.Scan) -> tuple[Found, ...]:
    """Every path of a place. Raises as `io.files.walk`."""
    return tuple(walk(Path(layout.prefix), skip=_skip(facts, layout, scanned)))


def _skip(facts: Interpretation, layout: Layout, scanned: distributions.Scan) -> Skip:
    bytecode = compose.Bytecode(Path(layout.prefix))
    if layout != facts.layout or facts.kind == "system":
        return _only(layout, _elsewhere(layout, scanned), bytecode)
    if facts.kind == "interpreter":
        return _but_interpreter(facts, bytecode)
    if facts.kind == "conda":
        apart = conda.beside(Path(layout.prefix))
        return lambda path, is_dir: path in apart or bytecode(path, is_dir)
    return bytecode


def _only(layout: Layout, files: frozenset[str], bytecode: Skip) -> Skip:
    sites = {layout.purelib, layout.platlib}
    inner = tuple(f"{site}/" for site in sites)
    parents = {parent for path in (*sites, *files) for parent in _parents(path)}

    def skip(path: str, is_dir: bool) -> bool:
        if path in sites or path.startswith(inner):
            return bytecode(path, is_dir)
        return path not in (parents if is_dir else files)

    return skip


def _but_interpreter(facts: Interpretation, bytecode: Skip) -> Skip:
    """The standard library, its headers and the static libraries are the interpreter's own layer, or in none by its rule."""
    prefix, python = facts.layout.prefix, facts.interpreter
    parts = {os.path.relpath(path, prefix) for path in (python.stdlib, python.platstdlib)}
    headers = f"include/{posixpath.basename(python.stdlib)}"
    inner = tuple(f"{part}/" for part in parts)
    sites = {facts.layout.purelib, facts.layout.platlib}
    site = tuple(f"{one}/" for one in sites)

    def skip(path: str, is_dir: bool) -> bool:
        if path in sites or path.startswith(site):
            return bytecode(path, is_dir)
        if path.startswith(inner) or path == headers:
            return not any(one == path or one.startswith(path + "/") for one in sites)
        return bytecode(path, is_dir) or (not is_dir and interpreter.left_out(path, is_dir))

    return skip


def _elsewhere(layout: Layout, scanned: distributions.Scan) -> frozenset[str]:
    """What RECORDs list outside of the site folders: scripts, data files. Relative to the prefix."""
    found: set[str] = set()
    for one in scanned.distributions:
        for line in one.record.splitlines():
            if not line.startswith((b"..", b'"..', b"/", b'"/')):
                continue
            row = line.decode("utf-8", "surrogateescape").rsplit(",", 2)[0].strip('"')
            path = posixpath.normpath(posixpath.join(layout.prefix, one.facts.site, row))
            if path.startswith(layout.prefix + "/") and "__pycache__" not in path:
                found.add(path[len(layout.prefix) + 1 :])
    return frozenset(found)


def _sites(layout: Layout) -> Iterator[str]:
    for site in dict.fromkeys((layout.purelib, layout.platlib)):
        yield f"{layout.prefix}/{site}"


def _split(folder: str) -> tuple[str, str] | None:
    """`/home/ann/.local/lib/python3.11/site-packages` -> (`/home/ann/.local`, `lib/python3.11/site-packages`)."""
    parts = folder.split("/")
    if len(parts) < 5 or parts[-1] not in SITES or not _FOLDER.fullmatch(parts[-2]) or parts[-3] not in _LIBRARY:
        return None
    return "/".join(parts[:-3]), "/".join(parts[-3:])


def _twins(one: str, other: str) -> bool:
    """`lib/…` and `lib64/…` of one Python."""
    return one != other and one.partition("/")[2] == other.partition("/")[2]


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def edited(place: Place, lines: Sequence[str]) -> tuple[str, ...]:
    """Lines that begin with a path of the place: of all but the first place with their whole path."""
    return tuple(lines) if place.number == 0 else tuple(f"{place.layout.prefix}/{line}" for line in lines)
