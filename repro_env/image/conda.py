"""Conda rule 1: what one conda package becomes when it is linked into a prefix.

As conda, mamba and rattler link: every path of `info/paths.json` (or of the older `info/files`), `noarch: python` files
placed by the Python of the environment, the placeholder of the build replaced by the prefix. What installers do not
agree upon is fixed here as mamba and rattler have it; an installed file that another one wrote otherwise is then a
difference, and the overlay holds it as it is:

- only the UTF-8 form of a placeholder is replaced (conda knows UTF-16 and UTF-32 too);
- a first line longer than `LONGEST_SHEBANG`, or with a space in the prefix, starts Python through `sh`, other programs
  through `env`.

Left out of the canonical form: `__pycache__`, and what installers write for themselves. `conda-meta/<package>.json` is
made anew without URLs, times and paths of this machine; entry points of `noarch: python` are made by `image.script`.
No script of a package is run: what link scripts did to the environment shows as a difference.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from repro_env.image import script
from repro_env.image.entry import Entry
from repro_env.image.layout import inside, root_of
from repro_env.image.wheel import Installed
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError
from repro_env.model.text import CondaFile, CondaName, Line

MAX_PATHS = 1_000_000
LONGEST_SHEBANG = 127
"""Bytes of a first line that is left as it is."""
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"
"""Of a line in the older `info/has_prefix` that names a file alone."""
HISTORY = "conda-meta/history"
"""Marks a folder as a conda environment. Always there and empty: it holds times, and channels with their tokens."""
_SHEBANG = re.compile(rb"#![ ]*(/(?:\\ |[^ \n\r\t])*)(.*)", re.DOTALL)
_PYTHON = re.compile(rb"python(?:\d+(?:\.\d+)?)?")
_QUOTES = "\"'"

Bytes = bytes | mmap.mmap
Kind = Literal["file", "link", "dir"]


class Packed(msgspec.Struct, frozen=True, gc=False):
    """One path as the package lists it. Sizes and hashes are those before the placeholder is replaced."""

    path: str
    """Relative to the archive's root."""
    kind: Kind
    size: int
    """-1 where the package does not say."""
    sha256: str
    """Hex; empty where the package does not say. Of a symlink that of what it leads to, where it says one."""
    placeholder: str
    """What stands for the prefix in it; empty when nothing does."""
    binary: bool
    """Replaced as a C string, its length kept."""


class Info(msgspec.Struct, frozen=True):
    """What the `info/` folder of a package tells."""

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
    entry_points: tuple[script.EntryPoint, ...]
    """Of `noarch: python`; sorted by name."""
    paths: tuple[Packed, ...]
    """In the order of the list."""


class Linked(msgspec.Struct, frozen=True, gc=False):
    """One path as it is linked into a certain prefix."""

    member: str
    """Its path in the archive."""
    kind: Kind
    executable: bool
    size: int
    """Bytes, the prefix in its place."""
    sha256: str
    """Hex, the prefix in its place."""
    target: str
    """Of a symlink."""


class Facts(msgspec.Struct, frozen=True):
    """All of a package that decides what it becomes at one prefix."""

    filename: CondaFile
    info: Info
    linked: tuple[Linked, ...]


_KNOWN = (msgspec.json.Decoder(Packed), msgspec.json.Decoder(Info))
"""msgspec works a type out when it is first used, which two threads must not do at once."""


def read_info(files: Mapping[str, bytes], filename: str, links: frozenset[str] = frozenset()) -> Info:
    """The contents of `info/` as facts. `files`: by path; `links`: paths that are symlinks, for packages without `paths.json`.

    Raises `ArtifactError` for what contradicts itself or leaves the prefix.
    """
    index = _json(files, "info/index.json", filename)
    link = _json(files, "info/link.json", filename) if "info/link.json" in files else {}
    noarch = _noarch(index, link)
    found = {
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
        "paths": _paths(files, filename, links),
    }
    try:
        info = msgspec.convert(found, Info, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"has an info/index.json that cannot be used: {error}", where=filename) from None
    if f"{info.name}-{info.version}-{info.build}" != stem(filename):
        raise ArtifactError(f"holds {info.name} {info.version} {info.build}, which its file name does not say", where=filename)
    return info


def stem(filename: str) -> str:
    """`name-version-build`."""
    return filename.removesuffix(".conda").removesuffix(".tar.bz2")


def _json(files: Mapping[str, bytes], path: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(files[path].decode())
    except KeyError:
        raise ArtifactError(f"has no {path}", where=where) from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"has an {path} that cannot be read", where=where) from None
    if not isinstance(found, dict):
        raise ArtifactError(f"has an {path} that cannot be read", where=where)
    return found


def _noarch(index: Mapping[str, Any], link: Mapping[str, Any]) -> str:
    told = index.get("noarch")
    if told is None and isinstance(link.get("noarch"), dict):
        told = link["noarch"].get("type")
    if told is True:
        return "generic"
    return told if told in ("python", "generic") else ""


def _entry_points(link: Mapping[str, Any], where: str) -> tuple[script.EntryPoint, ...]:
    noarch = link.get("noarch")
    told = noarch.get("entry_points") if isinstance(noarch, dict) else None
    if not told:
        return ()
    if not isinstance(told, list) or not all(isinstance(one, str) and "\n" not in one and "\r" not in one for one in told):
        raise ArtifactError("has an info/link.json that cannot be read", where=where)
    return tuple(script.entry_points("[console_scripts]\n" + "\n".join(one.strip() for one in told), where=where))


def _paths(files: Mapping[str, bytes], where: str, links: frozenset[str]) -> tuple[Packed, ...]:
    found = _new_paths(files, where) if "info/paths.json" in files else _old_paths(files, where, links)
    if len(found) > MAX_PATHS:
        raise ArtifactError("lists too many paths", where=where)
    if len({one.path for one in found}) != len(found):
        raise ArtifactError("lists a path twice", where=where)
    for one in found:
        check_path(one.path, where)
    return tuple(found)


def check_path(path: str, where: str) -> None:
    """Raises `ArtifactError` for a path that is not a plain one below the root."""
    parts = path.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in path or not path.isprintable():
        raise ArtifactError(f"has the path {path!r}", where=where)


def _new_paths(files: Mapping[str, bytes], where: str) -> list[Packed]:
    bad = ArtifactError("has an info/paths.json that cannot be read", where=where)
    said = _json(files, "info/paths.json", where)
    rows = said.get("paths")
    if said.get("paths_version") != 1 or not isinstance(rows, list):
        raise bad
    found = []
    for row in rows:
        if not isinstance(row, dict):
            raise bad
        kind = {"hardlink": "file", "softlink": "link", "directory": "dir"}.get(row.get("path_type", "hardlink"))
        placeholder, mode = row.get("prefix_placeholder") or "", row.get("file_mode") or "text"
        if kind is None or mode not in ("text", "binary"):
            raise bad
        fields = {
            "path": row.get("_path"),
            "kind": kind,
            "size": row["size_in_bytes"] if isinstance(row.get("size_in_bytes"), int) else -1,
            "sha256": (row.get("sha256") or "").lower(),
            "placeholder": placeholder if kind == "file" else "",
            "binary": mode == "binary",
        }
        try:
            found.append(msgspec.convert(fields, Packed))
        except msgspec.ValidationError:
            raise bad from None
    return found


def _old_paths(files: Mapping[str, bytes], where: str, links: frozenset[str]) -> list[Packed]:
    """Packages of conda-build 2 and older: `info/files`, `info/has_prefix`."""
    if "info/files" not in files:
        raise ArtifactError("has neither info/paths.json nor info/files", where=where)
    placeholders: dict[str, tuple[str, bool]] = {}
    for row in _lines(files.get("info/has_prefix", b""), where):
        if match := re.fullmatch(r"(\"[^\"]*\"|'[^']*'|\S+)\s+(text|binary)\s+(\"[^\"]*\"|'[^']*'|.+)", row):
            placeholders[match[3].strip(_QUOTES)] = match[1].strip(_QUOTES), match[2] == "binary"
        else:
            placeholders[row.strip(_QUOTES)] = PLACEHOLDER, False
    found = []
    for path in _lines(files["info/files"], where):
        placeholder, binary = placeholders.get(path, ("", False)) if path not in links else ("", False)
        found.append(Packed(path, "link" if path in links else "file", -1, "", placeholder, binary))
    return found


def _lines(data: bytes, where: str) -> list[str]:
    try:
        rows = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ArtifactError("has a list of files that is not UTF-8", where=where) from None
    return [row.strip() for row in rows if row.strip() and not row.startswith("#")]


def canonical(facts: Facts, layout: Layout) -> Installed:
    """What the package becomes at `layout`, whose prefix its facts were made for.

    Raises `ArtifactError` when it contradicts itself: two files on one path, a path below a file, a symlink that leaves
    the prefix.
    """
    where, info = facts.filename, facts.info
    entries: dict[str, Entry] = {}
    members: dict[str, str] = {}
    literals: dict[str, bytes] = {}
    points: dict[str, script.EntryPoint] = {}

    def add(entry: Entry) -> None:
        if entry.path in entries:
            raise ArtifactError(f"installs {entry.path} twice", where=where)
        entries[entry.path] = entry

    for one in facts.linked:
        path = placed(one.member, info.noarch, layout)
        if "__pycache__" in path.split("/") or path == HISTORY:
            continue
        if one.kind == "link":
            _check_target(path, one.target, layout.prefix, where)
            add(Entry(path, "link", target=one.target))
        elif one.kind == "dir":
            add(Entry(path, "dir"))
        else:
            add(Entry(path, "file", one.executable, one.size, one.sha256))
            members[path] = one.member
    for point in info.entry_points:
        path = f"{layout.scripts}/{point.name}"
        if path in entries:  # installers make entry points last
            del entries[path]
            members.pop(path, None)
        text = point.text(script.first_line(layout.python))
        literals[path] = text
        points[path] = point
        add(Entry(path, "file", True, len(text), hashlib.sha256(text).hexdigest()))
    own = record_path(where)
    literals[own] = record(facts, sorted(entries))
    add(Entry(own, "file", False, len(literals[own]), hashlib.sha256(literals[own]).hexdigest()))
    _check_parents(entries, where)
    return Installed(
        root=inside(root_of(layout)),
        entries=tuple(sorted(entries.values(), key=lambda entry: entry.key)),
        members=members,
        literals=literals,
        points=points,
        bodies={},
    )


def record_path(filename: str) -> str:
    """Where an installer notes down what it installed."""
    return f"conda-meta/{stem(filename)}.json"


def record(facts: Facts, paths: list[str]) -> bytes:
    """`conda-meta/<package>.json` in canonical form: what `conda list` and others ask for, and nothing of where it came from.

    conda and rattler want a URL and a channel to be there, so there are some that lead nowhere.
    """
    info = facts.info
    said: dict[str, object] = {
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
        said["noarch"] = info.noarch
    return (json.dumps(said, indent=2, sort_keys=True) + "\n").encode()


def placed(member: str, noarch: str, layout: Layout) -> str:
    """Where a path of the archive goes, relative to the prefix."""
    if noarch == "python":
        if member.startswith("site-packages/"):
            return layout.purelib + member.removeprefix("site-packages")
        if member.startswith("python-scripts/"):
            return layout.scripts + member.removeprefix("python-scripts")
    return member


def _check_target(path: str, target: str, prefix: str, where: str) -> None:
    """`target` may be absolute, below the prefix."""
    full = posixpath.normpath(posixpath.join(prefix, posixpath.dirname(path), target))
    if not target or not target.isprintable() or not full.startswith(prefix + "/"):
        raise ArtifactError(f"has the symlink {path} to {target!r}, which leaves the environment", where=where)


def _check_parents(entries: Mapping[str, Entry], where: str) -> None:
    for path in entries:
        folder = path
        while folder := folder.rpartition("/")[0]:
            if folder in entries and entries[folder].kind != "dir":
                raise ArtifactError(f"has {path}, which lies below a file or symlink", where=where)


def replaced(data: Bytes, packed: Packed, prefix: str) -> Iterator[bytes]:
    """The content of a file with the prefix in the placeholder's place, in parts.

    Raises `ArtifactError` for a prefix that is too long to stand in a binary file.
    """
    old, new = packed.placeholder.encode(), prefix.encode()
    if packed.binary:
        if len(new) > len(old):
            raise ArtifactError(f"{packed.path} has room for a prefix of {len(old)} bytes, and it has {len(new)}", where=prefix)
        yield from _in_strings(data, old, new)
        return
    start = 0
    if data[:2] == b"#!" and (end := data.find(b"\n")) > 0:
        yield shebang(data[:end], old, new)
        start = end
    while (at := data.find(old, start)) >= 0:
        yield from _cut(data, start, at)
        yield new
        start = at + len(old)
    yield from _cut(data, start, len(data))


def restored(data: Bytes, packed: Packed, prefix: str) -> Iterator[bytes] | None:
    """The reverse of `replaced`, in parts: what the package holds if this is what became of it. None when there is no telling.

    Nothing is proven by it but by the sha256 of what comes out.
    """
    old, new = packed.placeholder.encode(), prefix.encode()
    if packed.binary:
        return _out_of_strings(data, old, new) if len(new) <= len(old) else None
    if data[:2] == b"#!" and (end := data.find(b"\n")) > 0:
        first = data[:end]
        if shebang(first.replace(new, old), old, new) != first:
            return None  # it was too long: what it was is not in it
    return _restored_text(data, old, new)


def _restored_text(data: Bytes, old: bytes, new: bytes) -> Iterator[bytes]:
    start = 0
    while (at := data.find(new, start)) >= 0:
        yield from _cut(data, start, at)
        yield old
        start = at + len(new)
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


def _out_of_strings(data: Bytes, old: bytes, new: bytes) -> Iterator[bytes]:
    """Each C string with the prefix in it grows by what was cut off, and the zeros behind it go."""
    start = 0
    while (at := data.find(new, start)) >= 0:
        yield from _cut(data, start, at)
        end = data.find(b"\0", at)
        end = len(data) if end < 0 else end
        text = data[at:end]
        longer = (len(old) - len(new)) * text.count(new)
        if data[end : end + longer].strip(b"\0"):
            yield text  # the prefix was there before: no zeros were put in
            start = end
        else:
            yield text.replace(new, old)
            start = end + longer
    yield from _cut(data, start, len(data))


def _cut(data: Bytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, 1 << 20):
        yield data[at : min(at + (1 << 20), end)]


def shebang(line: bytes, old: bytes, new: bytes) -> bytes:
    """The first line of a script with the prefix in it, in a form that a kernel takes."""
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
