"""The package sources that uv, Poetry, PDM and requirements files name: indexes, find-links, and the wheels of lock files.

Files of a project may come from a stranger. Each is read up to a size, by a schema of the few keys that matter here, and
names candidates only. Credentials from variables go into the URLs of requests and nowhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from packaging.utils import canonicalize_name

from repro_env.capture.target import project_directories
from repro_env.io.files import read_regular
from repro_env.io.http import PageCache
from repro_env.model import redact
from repro_env.model.sources import Index, LockedFile, PackageSources

LARGEST = 16 << 20
"""Bytes of a file that is read; a lock file of a thousand packages has about 5 MB."""
MOST = 32
"""Indexes and find-links that are used: each is asked for every distribution."""
_LOCK_FILES = ("uv.lock", "pylock.toml", "pylock.*.toml", "poetry.lock", "pdm.lock")
_OPTION = re.compile(r"^[ \t]*(-i|--index-url|--extra-index-url|-f|--find-links)(?:[ \t]+|=)(\S+)", re.MULTILINE)
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(\S+)")
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

_T = TypeVar("_T")


class _Entry(msgspec.Struct):
    """`[[tool.uv.index]]`, `[[tool.poetry.source]]` or `[[tool.pdm.source]]`."""

    url: str = ""
    name: str = ""
    explicit: bool = False
    default: bool = False
    format: str = ""
    """uv: `flat` for find-links."""
    priority: str = ""
    """Poetry."""
    type: str = ""
    """PDM: `find_links`."""


class _Pin(msgspec.Struct):
    """The index of one distribution: `[tool.uv.sources]`."""

    index: str = ""


class _Locations(msgspec.Struct, rename="kebab"):
    index_url: str = ""
    extra_index_url: list[str] = []
    find_links: list[str] = []


class _Uv(_Locations, rename="kebab"):
    index: list[_Entry] = []
    sources: dict[str, _Pin | list[_Pin]] = {}
    no_index: bool = False
    pip: _Locations = msgspec.field(default_factory=_Locations)


class _Group(msgspec.Struct):
    dependencies: dict[str, Any] = {}


class _Poetry(_Group):
    source: list[_Entry] = []
    group: dict[str, _Group] = {}


class _Pdm(msgspec.Struct):
    source: list[_Entry] = []


class _Tool(msgspec.Struct):
    uv: _Uv = msgspec.field(default_factory=_Uv)
    poetry: _Poetry = msgspec.field(default_factory=_Poetry)
    pdm: _Pdm = msgspec.field(default_factory=_Pdm)


class _PyProject(msgspec.Struct):
    tool: _Tool = msgspec.field(default_factory=_Tool)


class _Origin(msgspec.Struct):
    registry: str = ""
    """uv."""
    type: str = ""
    """Poetry: `legacy` for an index."""
    url: str = ""


class _File(msgspec.Struct):
    url: str = ""
    hash: str = ""
    hashes: dict[str, str] = {}


class _Package(msgspec.Struct):
    """A package of `uv.lock`, `poetry.lock` or `pdm.lock` (`[[package]]`), or of `pylock.toml` (`[[packages]]`)."""

    name: str
    source: _Origin = msgspec.field(default_factory=_Origin)
    index: str = ""
    wheels: list[_File] = []
    files: list[_File] = []


class _Lock(msgspec.Struct):
    package: list[_Package] = []
    packages: list[_Package] = []


def look(source: Path | None, environ: Mapping[str, str], cache: PageCache | None = None) -> PackageSources:
    """What variables, the files of the project around `source` and the user's own files name; nearest first.

    Without `source`, only what is the user's and the machine's own. `cache` remembers lock files by their sha256: reading
    one as TOML takes about a second for each MB.
    """
    reader = _Reader(environ, cache)
    reader.take_variables()
    for directory in project_directories(source, environ) if source is not None else ():
        reader.take_directory(directory)
    for path in _own_files(environ):
        reader.take_uv(reader.read(path, _Uv), path.parent)
    return reader.sources()


class _Reader:
    """Collects what one file after the other names."""

    def __init__(self, environ: Mapping[str, str], cache: PageCache | None) -> None:
        self._environ = environ
        self._cache = cache
        self._entries: list[tuple[_Entry, str]] = []
        """Entries with absolute URLs, and the start of the names of variables that hold credentials."""
        self._names: dict[str, set[str]] = {}
        """Index -> the distributions that are pinned to it."""
        self._bound: dict[str, set[str]] = {}
        """URL of an index -> the distributions that a lock file has from it."""
        self._files: dict[str, list[LockedFile]] = {}
        self._problems: list[str] = []

    def sources(self) -> PackageSources:
        """All that was collected. Of entries with the same name, the first counts, as for uv."""
        indexes: dict[str, Index] = {}
        find_links: dict[str, None] = {}
        replaced = False
        seen: set[str] = set()
        for entry, prefix in self._entries:
            if not entry.url or (entry.name and entry.name in seen):
                continue
            seen.add(entry.name)
            url = _with_credentials(entry.url, prefix, entry.name, self._environ)
            if entry.format == "flat" or entry.type == "find_links":
                find_links[url] = None
                continue
            replaced = replaced or entry.default or entry.priority == "default"
            names = frozenset(self._names.get(entry.name, ())) if entry.explicit or entry.priority == "explicit" else None
            _ask_for(indexes, url.rstrip("/"), names)
        for url, bound in self._bound.items():
            _ask_for(indexes, next((known for known in indexes if _without_user(known) == url), url), frozenset(bound))
        if len(indexes) > MOST or len(find_links) > MOST:
            self._problems.append(f"the project names more than {MOST} indexes; only the first {MOST} are used")
        return PackageSources(
            indexes=tuple(index for index in indexes.values() if index.names != frozenset())[:MOST],
            find_links=tuple(find_links)[:MOST],
            replaces_default=replaced,
            files={name: tuple(files) for name, files in self._files.items()},
            problems=tuple(redact.line(problem) for problem in self._problems),
        )

    def take_variables(self) -> None:
        """`UV_INDEX` and its neighbours."""
        here = Path.cwd()
        for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            for text in self._environ.get(variable, "").split():
                match = _NAMED.fullmatch(text)
                name, url = (match[1], match[2]) if match else ("", text)
                default = variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
                self._add(_Entry(url=url, name=name, default=default), here, variable, "UV_INDEX_")
        for text in filter(None, re.split(r"[,\s]", self._environ.get("UV_FIND_LINKS", ""))):
            self._add(_Entry(url=text, format="flat"), here, "UV_FIND_LINKS")

    def take_directory(self, directory: Path) -> None:
        """The files of one directory of the project."""
        tool = self.read(directory / "pyproject.toml", _PyProject).tool
        if not _is_set(self._environ, "UV_NO_CONFIG", "UV_CONFIG_FILE"):
            self.take_uv(self.read(directory / "uv.toml", _Uv), directory)
            self.take_uv(tool.uv, directory)
        for group in (tool.poetry, *tool.poetry.group.values()):
            for name, value in group.dependencies.items():
                for pin in value if isinstance(value, list) else [value]:
                    if isinstance(pin, dict) and isinstance(pin.get("source"), str):
                        self._names.setdefault(pin["source"], set()).add(canonicalize_name(name))
        where = str(directory / "pyproject.toml")
        for entry in tool.poetry.source:
            self._add(entry, directory, where, "POETRY_HTTP_BASIC_")
        for entry in tool.pdm.source:
            self._add(msgspec.structs.replace(entry, default=entry.name == "pypi"), directory, where)
        for pattern in _LOCK_FILES:
            for path in sorted(directory.glob(pattern)):
                self._take_lock(self.read(path, _Lock))
        for path in sorted(directory.glob("requirements*.txt")):
            self._take_requirements(path)

    def take_uv(self, uv: _Uv, directory: Path) -> None:
        """A `uv.toml`, or the `[tool.uv]` of a `pyproject.toml`, of this directory."""
        for name, pins in uv.sources.items():
            for pin in pins if isinstance(pins, list) else [pins]:
                self._names.setdefault(pin.index, set()).add(canonicalize_name(name))
        where = f"uv's configuration in {directory}"
        for locations in (uv, uv.pip):
            for url in locations.find_links:
                self._add(_Entry(url=url, format="flat"), directory, where)
            for url in () if uv.no_index else locations.extra_index_url:
                self._add(_Entry(url=url), directory, where)
            if not uv.no_index:
                self._add(_Entry(url=locations.index_url, default=True), directory, where)
        for entry in () if uv.no_index else uv.index:
            self._add(entry, directory, where, "UV_INDEX_")

    def read(self, path: Path, kind: type[_T]) -> _T:
        """A TOML file by its schema; an empty one when there is none, or with a problem when it cannot be used."""
        try:
            data = read_regular(path, LARGEST)
            return msgspec.toml.decode(data, type=kind) if kind is not _Lock else self._remembered(data, kind)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._problems.append(f"{path} cannot be read, and no package is looked for where it says: {error.strerror}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._problems.append(f"{path} is not as its program writes it, and no package is looked for where it says: {error}")
        return kind()

    def _remembered(self, data: bytes, kind: type[_T]) -> _T:
        """A lock file by its schema, from the cache when these very bytes were read before."""
        key = f"1 {hashlib.sha256(data).hexdigest()}"
        kept = self._cache.get("lock-file", key) if self._cache is not None else None
        with contextlib.suppress(msgspec.DecodeError):
            if kept is not None:
                return msgspec.json.decode(kept, type=kind)
        found = msgspec.toml.decode(data, type=kind)
        encoded = msgspec.json.encode(found)
        if self._cache is not None and b"@" not in encoded and b"?" not in encoded:  # a URL with these may hold a credential
            self._cache.put("lock-file", key, encoded)
        return found

    def _take_requirements(self, path: Path) -> None:
        """The options of a requirements file that name indexes and find-links."""
        try:
            text = read_regular(path, LARGEST).decode("utf-8", "replace")
        except OSError:
            return  # the source's own look at it says so
        for option, url in _OPTION.findall(text):
            self._add(_Entry(url=url, format="flat" if option in ("-f", "--find-links") else ""), path.parent, str(path))

    def _take_lock(self, lock: _Lock) -> None:
        for package in (*lock.package, *lock.packages):
            name = canonicalize_name(package.name)
            index = redact.url(package.index or package.source.registry)
            for file in (*package.wheels, *package.files):
                digest = _SHA256.fullmatch(file.hash or file.hashes.get("sha256", ""))
                if digest is not None and file.url.startswith(("http://", "https://")):
                    self._files.setdefault(name, []).append(LockedFile(file.url, digest[1], index))
            if package.source.type == "legacy" and _is_location(package.source.url):
                self._bound.setdefault(_without_user(package.source.url).rstrip("/"), set()).add(name)

    def _add(self, entry: _Entry, directory: Path, where: str, prefix: str = "") -> None:
        """Note an entry, its location made absolute from `directory`."""
        if not entry.url:
            return
        if "${" in entry.url:
            self._problems.append(f"{where}: {redact.url(entry.url)} needs a variable, and no package is looked for there")
        elif "://" not in entry.url:
            self._entries.append((msgspec.structs.replace(entry, url=str((directory / entry.url).absolute())), prefix))
        elif _is_location(entry.url):
            self._entries.append((entry, prefix))
        else:
            self._problems.append(f"{where}: {redact.url(entry.url)} is no http, https or file URL, and is not asked")


def _ask_for(indexes: dict[str, Index], url: str, names: frozenset[str] | None) -> None:
    """Note that an index is asked for these distributions too; None: for all."""
    known = indexes.get(url, Index(url, frozenset()))
    indexes[url] = Index(url, None if names is None or known.names is None else names | known.names)


def _own_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The user's `uv.toml`, then the machine's; or the one file that a variable names instead of all others."""
    if environ.get("UV_CONFIG_FILE"):
        yield Path(environ["UV_CONFIG_FILE"]).absolute()
    if _is_set(environ, "UV_NO_CONFIG", "UV_CONFIG_FILE"):
        return
    if environ.get("XDG_CONFIG_HOME") or environ.get("HOME"):
        yield Path(environ.get("XDG_CONFIG_HOME") or f"{environ['HOME']}/.config", "uv", "uv.toml")
    for directory in (*filter(None, environ.get("XDG_CONFIG_DIRS", "").split(":")), "/etc/xdg", "/etc"):
        yield Path(directory, "uv", "uv.toml")


def _is_set(environ: Mapping[str, str], *names: str) -> bool:
    return any(environ.get(name, "").lower() not in ("", "0", "false") for name in names)


def _with_credentials(url: str, prefix: str, name: str, environ: Mapping[str, str]) -> str:
    """The URL with the user and password that variables hold for the index of this name."""
    start = prefix + re.sub(r"[^A-Z0-9]", "_", name.upper())
    user, password = environ.get(f"{start}_USERNAME", ""), environ.get(f"{start}_PASSWORD", "")
    parts = urllib.parse.urlsplit(url)
    if not prefix or not name or not (user or password) or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        return url
    held = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}@"
    return urllib.parse.urlunsplit(parts._replace(netloc=held + parts.netloc))


def _is_location(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "file" or (parts.scheme in ("http", "https") and bool(parts.hostname))


def _without_user(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
