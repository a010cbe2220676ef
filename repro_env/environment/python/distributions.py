"""Read the installed distributions from their `.dist-info` directories. Nothing is imported or executed."""

from __future__ import annotations

import math
import os
import posixpath
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from repro_env.environment.system.tree import list_names
from repro_env.io.files import read_regular
from repro_env.schema import codec, redact
from repro_env.schema.environment import Distribution, Layout
from repro_env.schema.text import Line, Name, RelPath, Version

SMALL = 1 << 20
"""Bytes of METADATA in which its head ends, and maximum bytes of all other files."""
LARGE = 64 << 20
"""Maximum bytes of a RECORD, enough for about 500 000 files, and of METADATA, which has the readme."""
MOST_TAGS = 10_000
"""Maximum number of tags in a WHEEL; real wheels have a few dozen."""
_HEADER = re.compile(rb"^(Name|Version):[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class InstalledDistribution(msgspec.Struct, frozen=True):
    """The facts about a distribution, and the bytes of the files they were read from."""

    facts: Distribution
    record: bytes
    """RECORD; empty when there is none."""
    wheel: bytes
    """WHEEL; empty when there is none."""
    entry_points: bytes
    """entry_points.txt; empty when there is none."""

    def paths(self, prefix: str, part: str = "") -> Iterator[str]:
        """Yield the paths in RECORD that are below the prefix, relative to it. `part`: only those in whose line it is."""
        for line in self.record.decode("utf-8", "surrogateescape").splitlines():
            if part not in line:
                continue
            path = line.rsplit(",", 2)[0].strip('"')
            if not path.startswith(("..", "/")):
                yield f"{self.facts.site}/{path}"
                continue
            path = posixpath.normpath(posixpath.join(prefix, self.facts.site, path))
            if path.startswith(f"{prefix}/"):
                yield path[len(prefix) + 1 :]


class Scan(msgspec.Struct, frozen=True):
    """The distributions in the site-packages directories."""

    distributions: tuple[InstalledDistribution, ...]
    """Sorted by name; each name once."""
    problems: tuple[str, ...]
    """`.dist-info` directories that are not valid, and why: one line each, sorted. Their files count as unpackaged."""

    def lists(self, path: str) -> bool:
        """Whether the RECORD of a distribution that is not editable lists a path, relative to the prefix."""
        return any(
            path.startswith(f"{dist.facts.site}/") and f"{path[len(dist.facts.site) + 1 :]},".encode() in dist.record
            for dist in self.distributions
            if not dist.facts.editable
        )


_line = lru_cache(1024)(redact.line)
"""Cached, since most distributions have the same tags."""


class _InvalidDistributionError(Exception):
    """The reason why a directory is not a valid distribution."""


def scan(layout: Layout) -> Scan:
    """Read every `.dist-info` directory of an environment. A directory with unexpected content is listed as a problem."""
    by_name: dict[str, list[InstalledDistribution]] = defaultdict(list)
    problems = []
    for site in _sites(layout):
        for directory in (name for name in list_names(f"{layout.prefix}/{site}") if name.endswith(".dist-info")):
            try:
                dist = _read(Path(layout.prefix), site, directory)
            except _InvalidDistributionError as reason:  # noqa: PERF203 - an invalid directory does not end the loop
                problems.append(f"{redact.line(f'{site}/{directory}')}: {reason}")
            else:
                by_name[dist.facts.name].append(dist)
    distributions = []
    for name, candidates in sorted(by_name.items()):
        if len(candidates) == 1:
            distributions += candidates
            continue
        # Python itself would use the first in the order of the directory, which differs between file systems.
        directories = sorted(dist.facts.dist_info for dist in candidates)
        problems += [f"{directory}: one of {len(directories)} directories that claim to be {name}" for directory in directories]
    return Scan(tuple(distributions), tuple(sorted(problems)))


def project(dist: InstalledDistribution) -> str:
    """Return the absolute path of the project directory of an editable distribution; empty for other distributions."""
    url = urlsplit(dist.facts.direct_url)
    return unquote(url.path) if dist.facts.editable and url.scheme == "file" and url.path.startswith("/") else ""


def _sites(layout: Layout) -> list[str]:
    """Return purelib and platlib, relative to the prefix, or only one of them if both are the same directory."""
    prefix = Path(layout.prefix)
    sites = {os.path.realpath(prefix / site): site for site in (layout.platlib, layout.purelib)}
    return sorted(sites.values())


def _read(prefix: Path, site: str, directory: str) -> InstalledDistribution:
    path = prefix / site / directory
    dist_info = f"{site}/{directory}"
    if not codec.fits(dist_info, RelPath):
        raise _InvalidDistributionError("its name has characters that a spec cannot store")
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise _InvalidDistributionError("it is not a directory")
    metadata = _bytes(path / "METADATA", LARGE)
    if metadata is None:
        raise _InvalidDistributionError("it has no METADATA")
    fields = _HEADER.findall(_END_OF_HEAD.split(metadata[:SMALL], maxsplit=1)[0])
    head = {key.lower(): value.decode("utf-8", "replace").strip() for key, value in reversed(fields)}
    name, version = canonicalize_name(head.get(b"name", "")), head.get(b"version", "")
    if not codec.fits(name, Name):
        raise _InvalidDistributionError(f"its METADATA has an invalid name: {redact.line(head.get(b'name', ''))[:100]!r}")
    if not codec.fits(version, Version):
        raise _InvalidDistributionError(f"its METADATA has an invalid version: {redact.line(version)[:100]!r}")
    if canonicalize_name(directory.removesuffix(".dist-info").partition("-")[0]) != name:
        raise _InvalidDistributionError(f"its METADATA has the name {name}, which differs from the directory's name")
    record = _bytes(path / "RECORD", LARGE)
    wheel = _bytes(path / "WHEEL", SMALL) or b""
    origin, editable = _origin(_bytes(path / "direct_url.json", SMALL))
    facts = Distribution(
        name=name,
        version=version,
        dist_info=dist_info,
        site=site,
        tags=_tags(wheel),
        build=next(iter(_fields(wheel, "Build")), ""),
        direct_url=origin,
        editable=editable,
        has_record=record is not None,
    )
    return InstalledDistribution(facts, record or b"", wheel, _bytes(path / "entry_points.txt", SMALL) or b"")


def _fields(wheel: bytes, key: str) -> list[str]:
    """Return the values of one key of WHEEL, in order."""
    lines = (line.partition(":") for line in wheel.decode("utf-8", "replace").splitlines())
    return [_line(value.strip())[:300] for name, colon, value in lines if colon and name.strip().lower() == key.lower()]


def _tags(wheel: bytes) -> tuple[str, ...]:
    """Return the tags, sorted. `a.b-c.d-e.f` expands to eight tags, so a short file could expand to too many."""
    tags = sorted(set(_fields(wheel, "Tag")))
    count = sum(math.prod(part.count(".") + 1 for part in tag.split("-")) for tag in tags)
    if count > MOST_TAGS:
        raise _InvalidDistributionError(f"its WHEEL has {count:,} tags, which is more than {MOST_TAGS:,}")
    return tuple(tags)


class _VcsInfo(msgspec.Struct):
    vcs: str = "vcs"
    commit_id: str = ""


class _DirInfo(msgspec.Struct):
    editable: bool = False


class _DirectUrl(msgspec.Struct):
    """direct_url.json (PEP 610)."""

    url: str
    vcs_info: _VcsInfo | None = None
    dir_info: _DirInfo | None = None
    subdirectory: str | None = None


def _origin(text: bytes | None) -> tuple[str, bool]:
    """Return (URL, editable) of direct_url.json, a VCS URL in pip's form: `git+URL@COMMIT#subdirectory=DIR`.

    The URL is not redacted, because it is used to open a path or download a wheel."""
    if text is None:
        return "", False
    try:
        document = msgspec.json.decode(text, type=_DirectUrl)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _InvalidDistributionError("its direct_url.json cannot be read") from None
    vcs, origin = document.vcs_info, document.url
    origin = f"{vcs.vcs}+{origin}@{vcs.commit_id}" if vcs else origin
    origin += f"#subdirectory={document.subdirectory}" if document.subdirectory else ""
    if not codec.fits(origin, Line):
        raise _InvalidDistributionError("its direct_url.json cannot be read")
    return origin, document.dir_info is not None and document.dir_info.editable


def _bytes(path: Path, limit: int) -> bytes | None:
    """Return a file's bytes, or None if it does not exist."""
    try:
        return read_regular(path, limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _InvalidDistributionError(f"its {path.name} cannot be read: {error.strerror}") from None
