"""Conda rule 1: the files that one conda package installs into a prefix.

The rule follows conda, mamba and rattler: it installs every path of `info/paths.json`, which packages have since 2017, puts the files of `noarch: python` packages where the environment's Python looks for them, and replaces the build's
placeholder by the prefix. Where these installers disagree, the rule follows mamba and rattler. A file that another
installer wrote differently counts as a difference, and the overlay holds that file as it is:

- Only the UTF-8 form of a placeholder is replaced (conda also replaces UTF-16 and UTF-32).
- If a first line is longer than `LONGEST_SHEBANG`, or the prefix contains a space, Python is started through `sh` and
  any other program through `env`.

The canonical form leaves out `__pycache__` and the files that installers write for themselves. `conda-meta/<package>.json`
is written without URLs, times and paths of this machine. `guest.wheelrule` makes the entry points of `noarch: python`.
No script of a package is run: what a link script did to the environment shows as a difference.
"""

from __future__ import annotations

import json
import mmap
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from repro_env.guest.wheelrule import EntryPoint, shebang_of
from repro_env.oci import wheel
from repro_env.oci.entry import Entry, find_misplaced
from repro_env.oci.paths import inside, root_of
from repro_env.oci.wheel import Installed
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError
from repro_env.schema.text import CondaFile, CondaName, Line

MAX_PATHS = 1_000_000
LONGEST_SHEBANG = 127
"""Bytes: a longer first line is changed."""
HISTORY = "conda-meta/history"
"""Marks a directory as a conda environment. Always written empty, because its content holds times and channel tokens."""
_SHEBANG = re.compile(rb"#![ ]*(/(?:\\ |[^ \n\r\t])*)(.*)", re.DOTALL)
_PYTHON = re.compile(rb"python(?:\d+(?:\.\d+)?)?")

Bytes = bytes | mmap.mmap
Kind = Literal["file", "link", "dir"]


class PackagePath(msgspec.Struct, frozen=True, rename={"path": "_path"}):
    """An entry of `info/paths.json`: one path as the package lists it. Size and hash are those before the placeholder is replaced."""

    path: str
    """Relative to the archive's root."""
    path_type: Literal["hardlink", "softlink", "directory"] = "hardlink"
    size_in_bytes: int | None = None
    sha256: str | None = None
    """For a symlink, some packages give the hash of its target's content."""
    prefix_placeholder: str | None = None
    """The text that stands for the prefix in the file."""
    file_mode: Literal["text", "binary"] | None = None
    """Whether to replace the text in C strings and keep their length."""

    @property
    def kind(self) -> Kind:
        return _KINDS[self.path_type]

    @property
    def placeholder(self) -> str:
        """Empty if there is none."""
        return self.prefix_placeholder or "" if self.path_type == "hardlink" else ""


class Info(msgspec.Struct, frozen=True):
    """The content of a package's `info/` directory."""

    name: CondaName
    version: Line
    build: Line
    build_number: int
    subdir: CondaName
    depends: tuple[Line, ...]
    constrains: tuple[Line, ...]
    license: Line
    noarch: str
    """`python`, `generic` or empty."""
    entry_points: tuple[EntryPoint, ...]
    """The scripts of a `noarch: python` package, sorted by name."""
    paths: tuple[PackagePath, ...]
    """In the order in which the package lists them."""


class Facts(msgspec.Struct, frozen=True):
    """Everything of a package that determines what it installs into one prefix."""

    filename: CondaFile
    info: Info
    linked: tuple[Entry, ...]
    """Each path of the archive as it is installed into the prefix: size and sha256 after the placeholder is replaced."""


class _Listing(msgspec.Struct, frozen=True):
    """The content of `info/paths.json`."""

    paths: tuple[PackagePath, ...]
    paths_version: Literal[1]


_LISTING = msgspec.json.Decoder(_Listing)
_KINDS: dict[str, Kind] = {"hardlink": "file", "softlink": "link", "directory": "dir"}
_DECODER = msgspec.json.Decoder(Info)
"""Created at import: msgspec analyses a type on first use, and two threads must not do that at the same time."""


def read_info(files: Mapping[str, bytes], filename: str) -> Info:
    """Read the content of `info/`. `files`: content by path.

    Raises `ArtifactError` if it contradicts itself or a path leaves the prefix.
    """
    index = _json(files, "info/index.json", filename)
    link = _json(files, "info/link.json", filename) if "info/link.json" in files else {}
    noarch = _noarch(index, link)
    fields = {
        "name": index.get("name"),
        "version": index.get("version"),
        "build": index.get("build"),
        "build_number": index.get("build_number", 0),
        "subdir": index.get("subdir") or ("noarch" if noarch else "unknown"),
        "depends": index.get("depends") or (),
        "constrains": index.get("constrains") or (),
        "license": index.get("license") or "",
        "noarch": noarch,
        "entry_points": _entry_points(link, filename) if noarch == "python" else (),
        "paths": _paths(files, filename),
    }
    try:
        info = msgspec.convert(fields, Info, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"info/index.json has an invalid value: {error}", where=filename) from None
    if f"{info.name}-{info.version}-{info.build}" != stem(filename):
        raise ArtifactError(
            f"the package is {info.name} {info.version} {info.build}, which differs from its file name", where=filename
        )
    return info


def stem(filename: str) -> str:
    """Return `name-version-build`."""
    return filename.removesuffix(".conda").removesuffix(".tar.bz2")


def _json(files: Mapping[str, bytes], path: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(files[path].decode())
    except KeyError:
        raise ArtifactError(f"the package has no {path}", where=where) from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path} of the package is not valid JSON", where=where) from None
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} of the package is not a JSON object", where=where)
    return value


def _noarch(index: Mapping[str, Any], link: Mapping[str, Any]) -> str:
    kind = index.get("noarch")
    if kind is None and isinstance(link.get("noarch"), dict):
        kind = link["noarch"].get("type")
    if kind is True:
        return "generic"
    return kind if kind in ("python", "generic") else ""


def _entry_points(link: Mapping[str, Any], where: str) -> tuple[EntryPoint, ...]:
    noarch = link.get("noarch")
    lines = noarch.get("entry_points") if isinstance(noarch, dict) else None
    if not lines:
        return ()
    if not isinstance(lines, list) or not all(isinstance(line, str) and "\n" not in line and "\r" not in line for line in lines):
        raise ArtifactError("info/link.json of the package has invalid entry points", where=where)
    return tuple(wheel.read_entry_points(("[console_scripts]\n" + "\n".join(line.strip() for line in lines)).encode(), where))


def _paths(files: Mapping[str, bytes], where: str) -> tuple[PackagePath, ...]:
    if "info/paths.json" not in files:
        raise ArtifactError("the package has no info/paths.json", where=where)
    try:
        listing = _LISTING.decode(files["info/paths.json"])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArtifactError(f"info/paths.json of the package is not valid: {error}", where=where) from None
    paths = listing.paths
    if len(paths) > MAX_PATHS:
        raise ArtifactError(f"the package lists more than {MAX_PATHS:,} paths", where=where)
    if len({path.path for path in paths}) != len(paths):
        raise ArtifactError("the package lists a path twice", where=where)
    for path in paths:
        check_path(path.path, where)
    return paths


def check_path(path: str, where: str) -> None:
    """Check that a path is normal and stays below the root. Raises `ArtifactError`."""
    parts = path.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in path or not path.isprintable():
        raise ArtifactError(f"the package has the path {path!r}, which is not a normal relative path", where=where)


def canonical(facts: Facts, layout: Layout) -> Installed:
    """Return what the package installs at `layout`. Its facts were made for the prefix of that layout.

    Raises `ArtifactError` if the package contradicts itself: two files at one path, a path below a file, or a symlink
    that leaves the prefix.
    """
    where, info = facts.filename, facts.info
    entries: dict[str, Entry] = {}
    members: dict[str, str] = {}
    literals: dict[str, bytes] = {}
    points: dict[str, EntryPoint] = {}

    def add(entry: Entry) -> None:
        if entry.path in entries:
            raise ArtifactError(f"the package installs {entry.path} twice", where=where)
        entries[entry.path] = entry

    for installed in facts.linked:
        path = install_path(installed.path, info.noarch, layout)
        if "__pycache__" in path.split("/") or path == HISTORY:
            continue
        if installed.kind == "link":
            _check_target(path, installed.target, layout.prefix, where)
            add(Entry(path, "link", target=installed.target))
        elif installed.kind == "dir":
            add(Entry(path, "dir"))
        else:
            add(Entry(path, "file", installed.executable, installed.size, installed.sha256))
            members[path] = installed.path
    for point in info.entry_points:
        path = f"{layout.scripts}/{point.name}"
        if path in entries:  # installers write entry points last
            del entries[path]
            members.pop(path, None)
        text = point.text(shebang_of(layout.python))
        literals[path] = text
        points[path] = point
        add(Entry.of(path, text, executable=True))
    history = record_path(where)
    literals[history] = record(facts, sorted(entries))
    add(Entry.of(history, literals[history]))
    if misplaced := find_misplaced(entries.values()):
        raise ArtifactError(f"the path {misplaced} of the package is below a file or symlink", where=where)
    return Installed(
        root=inside(root_of(layout)),
        entries=tuple(sorted(entries.values(), key=lambda entry: entry.key)),
        members=members,
        literals=literals,
        points=points,
        bodies={},
    )


def record_path(filename: str) -> str:
    """Return the path of the file in which installers record what they installed."""
    return f"conda-meta/{stem(filename)}.json"


def record(facts: Facts, paths: list[str]) -> bytes:
    """Return `conda-meta/<package>.json` in canonical form: what `conda list` and other tools need, without the origin.

    conda and rattler require a URL and a channel, so both get a fixed value that leads nowhere.
    """
    info = facts.info
    fields: dict[str, object] = {
        "build": info.build,
        "build_number": info.build_number,
        "channel": "repro-env",
        "constrains": list(info.constrains),
        "depends": list(info.depends),
        "files": paths,
        "fn": facts.filename,
        "license": info.license,
        "name": info.name,
        "subdir": info.subdir,
        "url": f"repro-env://conda/{info.subdir}/{facts.filename}",
        "version": info.version,
    }
    if info.noarch:
        fields["noarch"] = info.noarch
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def install_path(member: str, noarch: str, layout: Layout) -> str:
    """Return where a path of the archive is installed, relative to the prefix."""
    if noarch == "python":
        if member.startswith("site-packages/"):
            return layout.purelib + member.removeprefix("site-packages")
        if member.startswith("python-scripts/"):
            return layout.scripts + member.removeprefix("python-scripts")
    return member


def _check_target(path: str, target: str, prefix: str, where: str) -> None:
    """Check that a symlink stays inside the prefix; its target may be absolute. Raises `ArtifactError`."""
    full = posixpath.normpath(posixpath.join(prefix, posixpath.dirname(path), target))
    if not target or not target.isprintable() or not full.startswith(prefix + "/"):
        raise ArtifactError(f"the symlink {path} points to {target!r}, outside of the environment", where=where)


def insert_prefix(data: Bytes, path: PackagePath, prefix: str) -> Iterator[bytes]:
    """Yield the content of a file in parts, with the placeholder replaced by the prefix.

    Raises `ArtifactError` if the prefix is too long for a binary file.
    """
    old, new = path.placeholder.encode(), prefix.encode()
    if path.file_mode == "binary":
        if len(new) > len(old):
            raise ArtifactError(
                f"the prefix is {len(new)} bytes long, and {path.path} has space for {len(old)} bytes", where=prefix
            )
        yield from _in_strings(data, old, new)
        return
    start = 0
    if data[:2] == b"#!" and (end := data.find(b"\n")) > 0:
        yield shebang(data[:end], old, new)
        start = end
    yield from _in_text(data, old, new, start)


def _in_text(data: Bytes, old: bytes, new: bytes, start: int) -> Iterator[bytes]:
    while (at := data.find(old, start)) >= 0:
        yield from _cut(data, start, at)
        yield new
        start = at + len(old)
    yield from _cut(data, start, len(data))


def _in_strings(data: Bytes, old: bytes, new: bytes) -> Iterator[bytes]:
    start = 0
    while (at := data.find(old, start)) >= 0:
        yield from _cut(data, start, at)
        end = data.find(b"\0", at + len(old))
        end = len(data) if end < 0 else end
        yield data[at:end].replace(old, new).ljust(end - at, b"\0")
        start = end
    yield from _cut(data, start, len(data))


def _cut(data: Bytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, 1 << 20):
        yield data[at : min(at + (1 << 20), end)]


def shebang(line: bytes, old: bytes, new: bytes) -> bytes:
    """Return the first line of a script with the prefix inserted, in a form that every kernel accepts."""
    if b" " in new:
        return _detour(line).replace(old, new) if old in line else line
    line = line.replace(old, new)
    return line if len(line) <= LONGEST_SHEBANG else _detour(line)


def _detour(line: bytes) -> bytes:
    match = _SHEBANG.fullmatch(line)
    if match is None:
        return line
    path, options = match[1], match[2]
    name = path.rpartition(b"/")[2]
    if _PYTHON.fullmatch(name):
        return b"#!/bin/sh\n'''exec' \"" + path + b'"' + options + b' "$0" "$@" #\'\'\''
    return b"#!/usr/bin/env " + name + options
