"""The installed distributions, as their `.dist-info` folders tell them. Nothing is imported or executed."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from repro_env.model import redact
from repro_env.model.environment import Distribution, Layout
from repro_env.model.text import Line, Name, RelPath, Version

SMALL = 1 << 20
"""Bytes read of METADATA (its head, the rest is a readme); most that any other file but RECORD may have."""
LARGE = 64 << 20
"""Most that a RECORD may have: some 500 000 files."""
MOST_TAGS = 10_000
"""Most that a WHEEL may have; real ones have some dozens."""
_HEADER = re.compile(rb"^(Name|Version):[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class InstalledDistribution(msgspec.Struct, frozen=True):
    """The facts, and the bytes of the files that they came from."""

    facts: Distribution
    record: bytes
    """RECORD; empty when there is none."""
    wheel: bytes
    """WHEEL; empty when there is none."""
    entry_points: bytes
    """entry_points.txt; empty when there is none."""


class Scan(msgspec.Struct, frozen=True):
    """What the site-packages folders hold."""

    distributions: tuple[InstalledDistribution, ...]
    """Sorted by name; each name once."""
    problems: tuple[str, ...]
    """`.dist-info` folders that are no distribution, and why: one line each, sorted. Their files are plain files."""


_line = lru_cache(1024)(redact.line)
"""Most distributions have the same tags and installer."""


class _Bad(Exception):  # noqa: N818 - never seen outside
    """Why a folder is no distribution."""


def scan(layout: Layout) -> Scan:
    """Read every `.dist-info` folder of a place. What is in them may be anything: it cannot make this fail."""
    by_name: dict[str, list[InstalledDistribution]] = defaultdict(list)
    problems = []
    for site in _sites(layout):
        for folder in _dist_infos(Path(layout.prefix, site)):
            try:
                found = _read(Path(layout.prefix), site, folder)
            except _Bad as reason:  # noqa: PERF203 - each folder for itself
                problems.append(f"{redact.line(f'{site}/{folder}')}: {reason}")
            else:
                by_name[found.facts.name].append(found)
    distributions = []
    for name, claimed in sorted(by_name.items()):
        if len(claimed) == 1:
            distributions += claimed
            continue
        # Python itself would take whichever the folder lists first, and that differs between file systems.
        folders = sorted(one.facts.dist_info for one in claimed)
        problems += [f"{folder}: one of {len(folders)} folders that claim to be {name}" for folder in folders]
    return Scan(tuple(distributions), tuple(sorted(problems)))


def project(one: InstalledDistribution) -> str:
    """The folder that an editable distribution is imported from, as an absolute path; empty for every other one."""
    url = urlsplit(one.facts.direct_url)
    return unquote(url.path) if one.facts.editable and url.scheme == "file" and url.path.startswith("/") else ""


def _sites(layout: Layout) -> list[str]:
    """purelib and platlib, relative to the prefix; one of them when both are the same folder."""
    prefix = Path(layout.prefix)
    sites = {os.path.realpath(prefix / site): site for site in (layout.platlib, layout.purelib)}
    return sorted(sites.values())


def _dist_infos(site: Path) -> list[str]:
    try:
        return sorted(path.name for path in site.iterdir() if path.name.endswith(".dist-info"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(prefix: Path, site: str, folder: str) -> InstalledDistribution:
    path = prefix / site / folder
    dist_info = f"{site}/{folder}"
    if not _fits(dist_info, RelPath):
        raise _Bad("its name cannot be written down")
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise _Bad("not a folder")
    metadata = _bytes(path / "METADATA", SMALL, head=True)
    if metadata is None:
        raise _Bad("it has no METADATA")
    head = {key.lower(): value.decode("utf-8", "replace").strip() for key, value in reversed(_HEADER.findall(_head(metadata)))}
    name, version = canonicalize_name(head.get(b"name", "")), head.get(b"version", "")
    if not _fits(name, Name):
        raise _Bad(f"its METADATA names it {redact.line(head.get(b'name', ''))[:100]!r}, which is no name")
    if not _fits(version, Version):
        raise _Bad(f"its METADATA gives the version {redact.line(version)[:100]!r}, which is no version")
    if canonicalize_name(folder.removesuffix(".dist-info").partition("-")[0]) != name:
        raise _Bad(f"its METADATA names it {name}, its folder does not")
    record = _bytes(path / "RECORD", LARGE)
    wheel = _bytes(path / "WHEEL", SMALL) or b""
    installer = (_bytes(path / "INSTALLER", SMALL) or b"").decode("utf-8", "replace").strip()
    origin, editable = _origin(_bytes(path / "direct_url.json", SMALL))
    found = Distribution(
        name=name,
        version=version,
        dist_info=dist_info,
        site=site,
        installer=_line(installer.partition("\n")[0].strip())[:200],
        tags=_tags(wheel),
        build=next(iter(_fields(wheel, "Build")), ""),
        requested=(path / "REQUESTED").exists(),
        direct_url=origin,
        editable=editable,
        has_record=record is not None,
    )
    return InstalledDistribution(found, record or b"", wheel, _bytes(path / "entry_points.txt", SMALL) or b"")


def _head(metadata: bytes) -> bytes:
    return _END_OF_HEAD.split(metadata, maxsplit=1)[0]


def _fields(wheel: bytes, key: str) -> list[str]:
    """Values of one key of WHEEL, in order."""
    rows = (row.partition(":") for row in wheel.decode("utf-8", "replace").splitlines())
    return [_line(value.strip())[:300] for name, colon, value in rows if colon and name.strip().lower() == key.lower()]


def _tags(wheel: bytes) -> tuple[str, ...]:
    """The tags, sorted. `a.b-c.d-e.f` stands for eight of them, so a short file can stand for more than fit in memory."""
    found = sorted(set(_fields(wheel, "Tag")))
    count = sum(math.prod(part.count(".") + 1 for part in tag.split("-")) for tag in found)
    if count > MOST_TAGS:
        raise _Bad(f"its WHEEL has {count:,} tags")
    return tuple(found)


def _origin(text: bytes | None) -> tuple[str, bool]:
    """(URL, editable) of direct_url.json (PEP 610); a VCS origin as pip writes it: `git+URL@COMMIT#subdirectory=DIR`.

    The URL is not redacted, because it is used to open a path or fetch a wheel."""
    if text is None:
        return "", False
    try:
        said: Any = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("url"), str):
        raise _Bad("its direct_url.json cannot be read")
    origin = said["url"]
    vcs, folder = said.get("vcs_info"), said.get("dir_info")
    if isinstance(vcs, dict):
        origin = f"{vcs.get('vcs', 'vcs')}+{origin}@{vcs.get('commit_id', '')}"
    if isinstance(said.get("subdirectory"), str):
        origin += f"#subdirectory={said['subdirectory']}"
    if not _fits(origin, Line):
        raise _Bad("its direct_url.json cannot be read")
    return origin, isinstance(folder, dict) and folder.get("editable") is True


def _bytes(path: Path, most: int, *, head: bool = False) -> bytes | None:
    """A file's bytes, None when it is not there; with `head` no more than `most` of them, else more is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "a symlink" if error.errno == errno.ELOOP else f"unreadable ({error.strerror})"
        raise _Bad(f"its {path.name} is {why}") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise _Bad(f"its {path.name} is not a file")
        data = os.read(fd, min(facts.st_size, most) + 1)
        while len(data) <= most and (more := os.read(fd, most + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) > most and not head:
        raise _Bad(f"its {path.name} has more than {most >> 20} MiB")
    return data[:most]


def _fits(text: str, kind: Any) -> bool:
    try:
        msgspec.convert(text, type=kind)
        text.encode()
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True
