"""Make a wheel of the installed files of a distribution that no index has; the same files always give the same bytes.

The canonical form of the wheel is the installed files: files of site-packages are at its root, others below the prefix in
`.data/data/`. Scripts of entry points come from `entry_points.txt`. Other scripts are in `.data/data/` too, because
installers would rewrite the first line of scripts in `.data/scripts/`.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.system.tree import parent_directories
from repro_env.guest import wheelrule
from repro_env.io.files import CHUNK, FileContents, Found, chunks_of, room, walk
from repro_env.oci import wheel
from repro_env.oci.entry import Entry
from repro_env.oci.wheel import Facts
from repro_env.schema import codec
from repro_env.schema.artifact import Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError, CaptureError
from repro_env.store.hashes import entries_of
from repro_env.store.packages.wheelfile import open_facts
from repro_env.store.store import Store

DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that zip supports."""
_NO_WHEEL = b"Wheel-Version: 1.0\nGenerator: repro-env\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_RULE = 1
"""Part of the cache's key; increment it when the content of the wheels changes."""


class Repacked(msgspec.Struct, frozen=True):
    wheel: Wheel
    facts: Facts
    path: Path
    """In the store."""
    problems: tuple[str, ...]
    """Rows of its RECORD that are not in the wheel: `<row>: <why>`, sorted. Files at these paths are in the overlay."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row of an installed RECORD, with its path resolved."""

    path: str
    """Relative to the prefix; for a path outside the prefix, as written."""
    problem: str
    """Why the file cannot be in a wheel; empty if it can."""
    sha256: str
    size: int


def rows(dist: InstalledDistribution, layout: Layout) -> list[Row]:
    """The rows of an installed RECORD. Raises `ArtifactError` for an invalid RECORD."""
    rows = []
    for row in wheel.read_record(dist.record, f"{layout.prefix}/{dist.facts.dist_info}/RECORD"):
        path = posixpath.normpath(posixpath.join(layout.prefix, dist.facts.site, row.path))
        is_inside = path.startswith(layout.prefix + "/")
        problem = "" if is_inside else "outside the environment"
        path = path[len(layout.prefix) + 1 :] if is_inside else row.path
        if is_inside and ("\\" in path or not path.isprintable()):
            problem = "a name that no wheel may have"
        rows.append(Row(path, problem, row.sha256, row.size))
    return rows


def written_by_installers(path: str, dist: InstalledDistribution) -> bool:
    """Whether a path is bytecode, or a `.dist-info` file that installers write themselves: these are never part of a wheel."""
    directory, _, last = path.rpartition("/")
    return "__pycache__" in directory.split("/") or (directory == dist.facts.dist_info and last in wheelrule.REWRITTEN)


def install_root(metadata: bytes, layout: Layout) -> str:
    """The directory that installers unpack a wheel with this WHEEL file to."""
    pure = re.search(rb"^Root-Is-Purelib:\s*true\s*$", metadata or _NO_WHEEL, re.MULTILINE | re.IGNORECASE)
    return layout.purelib if pure else layout.platlib


def repack(dist: InstalledDistribution, layout: Layout, *, store: Store, search: SecretSearch | None = None) -> Repacked:
    """Make the wheel and add it to the store. Raises `ArtifactError` if no wheel can contain the distribution.

    `search` searches the files first. If they contain a secret, no wheel is made, and `search` reports the secret later.
    """
    if install_root(dist.wheel, layout) != dist.facts.site:
        raise ArtifactError("this distribution is not installed where a wheel would install it", where=dist.facts.dist_info)
    prefix = Path(layout.prefix)
    files, problems = _files_of(dist, layout)
    members = _members(entries_of(files, store.hashes.of(prefix, files)), dist)
    if search is not None and not search.search_tree(
        members.values(), FileContents(prefix).chunks, lambda path: f"{prefix}/{path}"
    ):
        raise ArtifactError("the files of this distribution contain a secret", where=dist.facts.dist_info)
    literal = {} if dist.wheel else {f"{_info(dist)}/WHEEL": _NO_WHEEL}
    filename = _filename(dist)
    key = codec.digest((_RULE, filename, sorted(members.items()), sorted(literal)))
    cached = store.facts.recall("repack", key, Wheel)
    if cached is not None and (path := store.blobs.path(cached.sha256)) is not None:
        return Repacked(cached, open_facts(path, filename), path, problems)
    with store.temp.directory() as directory, room(store.root):
        wheel_path = directory / "wheel"
        _write(wheel_path, members, literal, dist, FileContents(prefix))
        path, digest = store.blobs.add(chunks_of(wheel_path))
    facts = open_facts(path, filename)
    wheel.canonical(facts, layout, name=dist.facts.name)  # raises `ArtifactError` for an invalid wheel
    repacked = Wheel(name=dist.facts.name, version=dist.facts.version, filename=filename, sha256=digest, size=path.stat().st_size)
    store.facts.put("repack", key, codec.canonical(repacked))
    return Repacked(repacked, facts, path, problems)


def normalize(path: Path, filename: str, store: Store) -> tuple[Path, str]:
    """Copy a wheel into the store, without what a build on another day or with another umask changes. Returns path and digest.

    Its files are unchanged. Their times, their modes except for the executable bit, their order and their compression are not.
    """
    facts = open_facts(path, filename)
    with store.temp.directory() as directory, room(store.root), zipfile.ZipFile(path) as original:
        copy = directory / "wheel"
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
            for file in sorted(facts.files, key=lambda file: file.name.encode()):
                with (
                    original.open(file.name) as read,
                    archive.open(_header(file.name, file.executable, file.size), "w") as written,
                ):
                    shutil.copyfileobj(read, written, CHUNK)
        return store.blobs.add(chunks_of(copy))


def _files_of(dist: InstalledDistribution, layout: Layout) -> tuple[list[Found], tuple[str, ...]]:
    points = wheel.read_entry_points(dist.entry_points.decode(errors="replace").encode(), dist.facts.dist_info)
    generated = {f"{layout.scripts}/{point.name}" for point in points}
    problems = []
    paths: set[str] = set()
    for row in rows(dist, layout):
        if row.problem:
            problems.append(f"{row.path}: {row.problem}")
        elif not written_by_installers(row.path, dist) and row.path not in generated:
            paths.add(row.path)
    parents = {parent for path in paths for parent in parent_directories(path)}
    found = {
        file.path: file
        for file in walk(Path(layout.prefix), skip=lambda path, is_dir: path not in (parents if is_dir else paths))
        if file.path in paths
    }
    for path in paths:
        if path not in found:
            problems.append(f"{path}: missing")
        elif found[path].kind != "file":
            problems.append(f"{path}: not a file")
    return [found[path] for path in sorted(found, key=str.encode) if found[path].kind == "file"], tuple(sorted(problems))


def _members(entries: Iterable[Entry], dist: InstalledDistribution) -> dict[str, Entry]:
    """The files of the wheel by their names in it, sorted; the paths of the entries are relative to the prefix."""
    site, data = dist.facts.site + "/", _info(dist).removesuffix(".dist-info") + ".data/data/"
    members = {}
    for entry in entries:
        is_in_site = entry.path.startswith(site)
        name = entry.path.removeprefix(site) if is_in_site else data + entry.path
        if is_in_site and name.startswith(data.partition("/")[0] + "/"):
            raise ArtifactError(
                f"this distribution has the file {entry.path}, whose name has a special meaning in a wheel",
                where=dist.facts.dist_info,
            )
        members[name] = entry
    return dict(sorted(members.items(), key=lambda item: item[0].encode()))


def _info(dist: InstalledDistribution) -> str:
    return dist.facts.dist_info.rpartition("/")[2]


def _filename(dist: InstalledDistribution) -> str:
    """`<name>-<version>-<tag>.whl`, with name and version as in `.dist-info` and the last tag of WHEEL."""
    name, _, version = _info(dist).removesuffix(".dist-info").rpartition("-")
    stem = f"{name.replace('-', '_')}-{version}-"
    filename = f"{stem}{max(dist.facts.tags, default='')}.whl"
    if not re.fullmatch(r"[A-Za-z0-9_.!+-]{1,251}-\w+-\w+-\w+\.whl", filename, re.ASCII):
        filename = f"{stem}py3-none-any.whl"
    wheel.name_and_version(filename)
    return filename


def _write(
    path: Path, members: Mapping[str, Entry], literal: Mapping[str, bytes], dist: InstalledDistribution, live: FileContents
) -> None:
    entries = [msgspec.structs.replace(entry, path=f"w/{name}") for name, entry in members.items()]
    entries += [Entry.of(f"w/{name}", text) for name, text in literal.items()]
    record_name = f"{_info(dist)}/RECORD"
    text = wheelrule.write_record(entries, f"w/{record_name}", "w")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, entry in members.items():
            hasher = hashlib.sha256()
            with archive.open(_header(name, entry.executable, entry.size), "w") as stream:
                for chunk in live.chunks(entry):
                    hasher.update(chunk)
                    stream.write(chunk)
            if hasher.hexdigest() != entry.sha256:
                raise CaptureError(
                    "this file changed while it was captured",
                    where=entry.path,
                    hint="wait until nothing writes to the environment, then capture again",
                )
        for name, data in (*sorted(literal.items()), (record_name, text)):
            archive.writestr(_header(name, False, len(data)), data)


def _header(name: str, executable: bool, size: int) -> zipfile.ZipInfo:
    header = zipfile.ZipInfo(name, DATE)
    header.create_system = 3  # Unix; otherwise the mode is ignored
    header.external_attr = (0o100755 if executable else 0o100644) << 16
    header.compress_type = zipfile.ZIP_STORED
    header.file_size = size  # decides on zip64
    return header
