"""Canonical rule 1: what one wheel becomes when it is installed.

`canonical` is a pure function of facts that can be read from a wheel's central directory and a few of its
small members, so it needs neither the whole file nor an installation. The same rule serves the capture
(what the installed files are compared with) and the rebuild (what is unpacked).

Left out of the canonical form: `__pycache__`, signatures, and what installers write for themselves
(`record.REWRITTEN`); RECORD and INSTALLER are made anew. Everything else has to be equal.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from repro_env.image import record, script
from repro_env.image.entry import Entry
from repro_env.image.layout import inside, root_of
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError

MAX_MEMBERS = 1_000_000


class File(msgspec.Struct, frozen=True, gc=False):
    """One file member of a wheel, from its central directory."""

    name: str
    size: int
    """Uncompressed bytes."""
    executable: bool
    """A regular file with any executable bit (as pip decides it)."""


class Facts(msgspec.Struct, frozen=True):
    """All of a wheel that decides what it becomes."""

    filename: str
    files: tuple[File, ...]
    record: bytes
    """Content of its top-level RECORD."""
    metadata: bytes
    """Content of WHEEL."""
    entry_points: bytes
    """Content of entry_points.txt, or nothing."""
    scripts: dict[str, bytes]
    """Content of each member in `.data/scripts/`, by member name: their first line may be rewritten."""


class Installed(msgspec.Struct, frozen=True):
    """What a wheel becomes: entries relative to the prefix, and where the bytes of each come from."""

    root: str
    """Where the image holds the prefix, relative to the image's root: `opt/env`."""

    entries: tuple[Entry, ...]
    """Files only, sorted by the path's bytes."""
    members: dict[str, str]
    """Path -> member name, for what is taken from the wheel as it is."""
    literals: dict[str, bytes]
    """Path -> bytes, for what is made: scripts, RECORD, INSTALLER."""
    points: dict[str, script.EntryPoint]
    """Path -> entry point, of generated scripts."""
    bodies: dict[str, bytes]
    """Path -> the wheel's own bytes, of `.data/scripts` files."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


def stem(filename: str) -> tuple[str, str]:
    """Distribution and version as the file name spells them: `torch-2.1.0+cpu-...` -> ("torch", "2.1.0+cpu")."""
    parts = filename.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6) or not filename.endswith(".whl") or not all(parts):
        raise ArtifactError("is not a wheel's file name", where=filename)
    return parts[0], parts[1]


def dist_info(names: list[str], filename: str) -> str:
    """The one top-level `.dist-info` folder. Others, deeper, are vendored."""
    folders = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info") and "/" in name}
    if len(folders) != 1:
        raise ArtifactError(f"has {len(folders)} top-level .dist-info folders where a wheel has one", where=filename)
    (found,) = folders
    want = "-".join(_plain(part) for part in stem(filename))
    if "-".join(_plain(part) for part in found.removesuffix(".dist-info").split("-", 1)) != want:
        raise ArtifactError(f"holds {found}, which its file name does not say", where=filename)
    return found


def _plain(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def canonical(facts: Facts, layout: Layout, *, name: str) -> Installed:
    """What the wheel becomes under `layout`. `name` is the normalised distribution name.

    Raises `ArtifactError` when the wheel contradicts itself: files that RECORD does not list, rows without
    a file or without a sha256, sizes that differ, names that leave the environment, two files on one path.
    """
    where = facts.filename
    names = [file.name for file in facts.files]
    if len(names) > MAX_MEMBERS or len(set(names)) != len(names):
        raise ArtifactError("has a member twice" if len(names) <= MAX_MEMBERS else "has too many members", where=where)
    for member in names:
        _check_name(member, where)
    info = dist_info(names, where)
    data = info.removesuffix(".dist-info") + ".data"
    site = layout.purelib if _is_purelib(facts.metadata) else layout.platlib
    first_line = script.first_line(layout.python)
    rows = {row.path: row for row in record.parse(facts.record, where=where)}
    entries: dict[str, Entry] = {}
    members: dict[str, str] = {}
    literals: dict[str, bytes] = {}
    points: dict[str, script.EntryPoint] = {}
    bodies: dict[str, bytes] = {}

    def add(entry: Entry) -> None:
        if entry.path in entries:
            raise ArtifactError(f"installs {entry.path} twice", where=where)
        entries[entry.path] = entry

    for file in facts.files:
        if file.name in (f"{info}/RECORD", f"{info}/RECORD.jws", f"{info}/RECORD.p7s"):
            continue
        row = rows.get(file.name)
        if row is None or not row.sha256 or row.size not in (-1, file.size):
            raise ArtifactError(f"has {file.name}, which its RECORD does not list with a sha256 and this size", where=where)
        if _left_out(file.name, info):
            continue
        if file.name.startswith(f"{data}/scripts/"):
            path = f"{layout.scripts}/{file.name.removeprefix(f'{data}/scripts/')}"
            body = facts.scripts[file.name]
            if hashlib.sha256(body).hexdigest() != row.sha256:
                raise ArtifactError(f"has {file.name} with other bytes than its RECORD says", where=where)
            add(_literal(path, script.rewritten(body, first_line), literals))
            bodies[path] = body
            continue
        path = _placed(file.name, data, site, layout, name, where)
        add(Entry(path, "file", file.executable, file.size, row.sha256))
        members[path] = file.name
    missing = set(rows) - set(names) - {f"{info}/RECORD.jws", f"{info}/RECORD.p7s"}
    if missing:
        raise ArtifactError(f"lists {min(missing)} in its RECORD and does not have it", where=where)
    for point in script.entry_points(_text(facts.entry_points, where), where=where):
        path = f"{layout.scripts}/{point.name}"
        if path in entries:  # a .data/scripts file of the same name: installers write the entry point over it
            del entries[path]
            bodies.pop(path, None)
        add(_literal(path, point.text(first_line), literals))
        points[path] = point
    add(_literal(f"{site}/{info}/INSTALLER", record.INSTALLER, literals, executable=False))
    own = f"{site}/{info}/RECORD"
    if own in entries:
        raise ArtifactError(f"installs {own} twice", where=where)
    add(_literal(own, record.write(entries.values(), own=own, site=site), literals, executable=False))
    return Installed(
        root=inside(root_of(layout)),
        entries=tuple(sorted(entries.values(), key=lambda entry: entry.key)),
        members=members,
        literals=literals,
        points=points,
        bodies=bodies,
    )


def _literal(path: str, text: bytes, literals: dict[str, bytes], *, executable: bool = True) -> Entry:
    literals[path] = text
    return Entry(path, "file", executable, len(text), hashlib.sha256(text).hexdigest())


def _check_name(member: str, where: str) -> None:
    parts = member.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in member or not member.isprintable():
        raise ArtifactError(f"has a member named {member!r}", where=where)


def _is_purelib(metadata: bytes) -> bool:
    match = re.search(rb"^Root-Is-Purelib:\s*(\S+)\s*$", metadata, re.MULTILINE | re.IGNORECASE)
    return match is not None and match[1].lower() == b"true"


def _left_out(member: str, info: str) -> bool:
    folder, _, last = member.rpartition("/")
    return (folder == info and last in record.REWRITTEN) or "__pycache__" in folder.split("/")


def _placed(member: str, data: str, site: str, layout: Layout, name: str, where: str) -> str:
    """Where a member goes (PEP 427, "The .data directory")."""
    if not member.startswith(data + "/"):
        return f"{site}/{member}"
    _, key, *rest = member.split("/")
    path = "/".join(rest)
    if not path:
        raise ArtifactError(f"has {member}, which belongs to no install scheme", where=where)
    if key == "purelib":
        return f"{layout.purelib}/{path}"
    if key == "platlib":
        return f"{layout.platlib}/{path}"
    if key == "headers":
        return f"{layout.headers}/{name}/{path}"
    if key == "data":
        return path
    raise ArtifactError(f"has {member}, which belongs to no install scheme", where=where)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ArtifactError("entry_points.txt is not UTF-8", where=where) from None
