"""What no index can give: a wheel made of the installed files, the same bytes each time.

Made so that its canonical form is the installed files again: files of site-packages at its root, others
below the prefix in `.data/data/`. Scripts of entry points are left to `entry_points.txt`; other scripts go
through `.data/data/` too, since the first line of `.data/scripts/` would be rewritten.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.tags import Tag, parse_tag

from repro_env.capture.distributions import InstalledDistribution
from repro_env.image import record, script, wheel
from repro_env.image.entry import CHUNK, Entry
from repro_env.image.wheel import Facts
from repro_env.io.files import FileContents, Found, room, walk
from repro_env.lock.search import Search
from repro_env.model import codec
from repro_env.model.artifact import Wheel
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError, CaptureError
from repro_env.store.store import Store
from repro_env.store.wheelfile import open_facts

DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest that zip can say."""
_NO_WHEEL = b"Wheel-Version: 1.0\nGenerator: repro-env\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_RULE = 1
"""Part of the cache's key; a change of what is written here needs the next number."""


class Repacked(msgspec.Struct, frozen=True):
    wheel: Wheel
    path: Path
    """In the store."""
    facts: Facts
    problems: tuple[str, ...]
    """Rows of its RECORD that are not in it: `<row>: <why>`, sorted. What the disk shows there is the overlay's concern."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row of an installed RECORD, resolved."""

    path: str
    """Relative to the prefix; as written when it leaves it."""
    problem: str
    """Why it cannot be taken; empty when it can."""
    sha256: str
    size: int


def rows(dist: InstalledDistribution, layout: Layout) -> list[Row]:
    """Where the rows of an installed RECORD point to. Raises `ArtifactError` for a RECORD that is none."""
    found = []
    for row in record.parse(dist.record, where=f"{layout.prefix}/{dist.facts.dist_info}/RECORD"):
        path = posixpath.normpath(posixpath.join(layout.prefix, dist.facts.site, row.path))
        below = path.startswith(layout.prefix + "/")
        problem = "" if below else "outside the environment"
        path = path[len(layout.prefix) + 1 :] if below else row.path
        if below and ("\\" in path or not path.isprintable()):
            problem = "a name that no wheel may have"
        found.append(Row(path, problem, row.sha256, row.size))
    return found


def written_by_installers(path: str, dist: InstalledDistribution) -> bool:
    """Bytecode, and what installers write into `.dist-info` for themselves: never part of a wheel."""
    folder, _, last = path.rpartition("/")
    return "__pycache__" in folder.split("/") or (folder == dist.facts.dist_info and last in record.REWRITTEN)


def root_of(metadata: bytes, layout: Layout) -> str:
    """Where the root of a wheel with this WHEEL file goes."""
    pure = re.search(rb"^Root-Is-Purelib:\s*true\s*$", metadata or _NO_WHEEL, re.MULTILINE | re.IGNORECASE)
    return layout.purelib if pure else layout.platlib


def repack(dist: InstalledDistribution, layout: Layout, *, store: Store, search: Search | None = None) -> Repacked:
    """Make the wheel and put it into the store. Raises `ArtifactError` when no wheel can hold the distribution.

    `search` searches the files first; if they hold a secret, no wheel is made and `Search.refuse` ends the capture.
    """
    if root_of(dist.wheel, layout) != dist.facts.site:
        raise ArtifactError("is installed where no wheel installs to", where=dist.facts.dist_info)
    prefix = Path(layout.prefix)
    taken, problems = _taken(dist, layout)
    hashes = store.hashes.of(prefix, taken)
    if search is not None:
        files = [Entry(one.path, "file", one.executable, one.size, hashes[one.path]) for one in taken]
        if not search.tree(files, FileContents(prefix), lambda path: f"{prefix}/{path}"):
            raise ArtifactError("its files hold a secret", where=dist.facts.dist_info)
    members = _members(taken, hashes, dist)
    literal = {} if dist.wheel else {f"{_info(dist)}/WHEEL": _NO_WHEEL}
    filename = _filename(dist)
    key = codec.digest((_RULE, filename, members, sorted(literal)))
    known = store.facts.recall("repack", key, Wheel)
    if known is not None and (path := store.blobs.path(known.sha256)) is not None:
        return Repacked(known, path, open_facts(path, filename), problems)
    with store.temp.folder() as folder, room(store.root):
        written = folder / "wheel"
        _write(written, members, literal, dist, FileContents(prefix))
        digest, size = _measured(written)
        made = Wheel(name=dist.facts.name, version=dist.facts.version, filename=filename, sha256=digest, size=size)
        path = store.blobs.put(chunks_of(written), digest, where=filename)
    facts = open_facts(path, filename)
    wheel.canonical(facts, layout, name=dist.facts.name)  # raises when it is not a wheel after all
    store.facts.put("repack", key, codec.canonical(made))
    return Repacked(made, path, facts, problems)


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _taken(dist: InstalledDistribution, layout: Layout) -> tuple[list[Found], tuple[str, ...]]:
    points = script.entry_points(dist.entry_points.decode(errors="replace"), where=dist.facts.dist_info)
    generated = {f"{layout.scripts}/{point.name}" for point in points}
    problems = []
    wanted: set[str] = set()
    for row in rows(dist, layout):
        if row.problem:
            problems.append(f"{row.path}: {row.problem}")
        elif not written_by_installers(row.path, dist) and row.path not in generated:
            wanted.add(row.path)
    parents = {parent for path in wanted for parent in _parents(path)}
    found = {
        one.path: one
        for one in walk(Path(layout.prefix), skip=lambda path, is_dir: path not in (parents if is_dir else wanted))
        if one.path in wanted
    }
    for path in wanted:
        if path not in found:
            problems.append(f"{path}: missing")
        elif found[path].kind != "file":
            problems.append(f"{path}: not a file")
    return [found[path] for path in sorted(found, key=str.encode) if found[path].kind == "file"], tuple(sorted(problems))


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


class _Member(msgspec.Struct, frozen=True):
    """One file on its way into the wheel."""

    name: str
    """Of the member."""
    path: str
    """Relative to the prefix."""
    executable: bool
    size: int
    sha256: str


def _members(taken: Sequence[Found], hashes: Mapping[str, str], dist: InstalledDistribution) -> list[_Member]:
    site, data = dist.facts.site + "/", _info(dist).removesuffix(".dist-info") + ".data/data/"
    found = []
    for one in taken:
        inside = one.path.startswith(site)
        name = one.path.removeprefix(site) if inside else data + one.path
        if inside and name.startswith(data.partition("/")[0] + "/"):
            raise ArtifactError(f"has {one.path}, whose name means something else in a wheel", where=dist.facts.dist_info)
        found.append(_Member(name, one.path, one.executable, one.size, hashes[one.path]))
    return sorted(found, key=lambda one: one.name.encode())


def _info(dist: InstalledDistribution) -> str:
    return dist.facts.dist_info.rpartition("/")[2]


def _filename(dist: InstalledDistribution) -> str:
    """`<name>-<version>-<tags>.whl`, name and version as `.dist-info` spells them, tags as WHEEL does."""
    spelled, _, version = _info(dist).removesuffix(".dist-info").rpartition("-")
    stem = f"{spelled.replace('-', '_')}-{version}-"
    filename = f"{stem}{_compressed(dist.facts.tags)}.whl"
    if not re.fullmatch(r"[A-Za-z0-9_.!+-]{1,251}\.whl", filename):
        filename = f"{stem}py3-none-any.whl"
    wheel.stem(filename)
    return filename


def _compressed(tags: Sequence[str]) -> str:
    """The tag set in the form of a file name, when it has one; else its first tag."""
    try:
        whole: frozenset[Tag] = frozenset().union(*(parse_tag(tag) for tag in tags))
    except ValueError:
        whole = frozenset()
    if not whole:
        return "py3-none-any"
    parts = ({tag.interpreter for tag in whole}, {tag.abi for tag in whole}, {tag.platform for tag in whole})
    text = "-".join(".".join(sorted(part)) for part in parts)
    return text if parse_tag(text) == whole else min(str(tag) for tag in whole)


def _write(
    path: Path, members: Sequence[_Member], literal: Mapping[str, bytes], dist: InstalledDistribution, live: FileContents
) -> None:
    entries = [Entry(f"w/{one.name}", "file", one.executable, one.size, one.sha256) for one in members]
    entries += [Entry(f"w/{name}", "file", False, len(text), hashlib.sha256(text).hexdigest()) for name, text in literal.items()]
    own = f"{_info(dist)}/RECORD"
    text = record.write(entries, own=f"w/{own}", site="w")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for one in members:
            hasher = hashlib.sha256()
            with archive.open(_header(one.name, one.executable, one.size), "w") as member:
                for chunk in live.chunks(Entry(one.path, "file", one.executable, one.size, one.sha256)):
                    hasher.update(chunk)
                    member.write(chunk)
            if hasher.hexdigest() != one.sha256:
                raise CaptureError(
                    "changed while it was captured",
                    where=one.path,
                    hint="wait until nothing writes to the environment, capture again",
                )
        for name in sorted(literal):
            archive.writestr(_header(name, False, len(literal[name])), literal[name])
        archive.writestr(_header(own, False, len(text)), text)


def _header(name: str, executable: bool, size: int) -> zipfile.ZipInfo:
    header = zipfile.ZipInfo(name, DATE)
    header.create_system = 3  # Unix, or the mode means nothing
    header.external_attr = (0o100755 if executable else 0o100644) << 16
    header.compress_type = zipfile.ZIP_STORED
    header.file_size = size  # decides on zip64
    return header


def _measured(path: Path) -> tuple[str, int]:
    hasher = hashlib.sha256()
    for chunk in chunks_of(path):
        hasher.update(chunk)
    return "sha256:" + hasher.hexdigest(), path.stat().st_size
