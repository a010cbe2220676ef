"""Find the package sources in the configuration of uv and Poetry, and in requirements files: indexes, find-links, wheels
of lock files.

The files of a project may be malicious. Each is read only up to a maximum size, with a schema of the few necessary keys, and
its sources are only candidates. Credentials from variables are used only in the URLs of requests.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from packaging.utils import canonicalize_name

from repro_env.environment.python.selection import project_directories
from repro_env.io.files import read_regular
from repro_env.schema import codec, redact
from repro_env.schema.sources import Index, LockedFile, PackageSources
from repro_env.store.facts import FactCache

LARGEST = 16 << 20
"""Maximum bytes of a file; a lock file of a thousand packages has about 5 MB."""
MOST = 32
"""Maximum number of indexes, and of find-links, since each is queried for every distribution."""
_LOCK_FILES = ("uv.lock", "pylock.toml", "pylock.*.toml")
_OPTION = re.compile(r"^[ \t]*(-i|--index-url|--extra-index-url|-f|--find-links)(?:[ \t]+|=)(\S+)", re.MULTILINE)
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(\S+)")
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

_T = TypeVar("_T")


class _Entry(msgspec.Struct):
    """An entry of `[[tool.uv.index]]` or `[[tool.poetry.source]]`."""

    url: str = ""
    name: str = ""
    explicit: bool = False
    default: bool = False
    format: str = ""
    """uv: `flat` for find-links."""
    priority: str = ""
    """Poetry: `default` or `explicit`."""


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


class _Tool(msgspec.Struct):
    uv: _Uv = msgspec.field(default_factory=_Uv)
    poetry: _Poetry = msgspec.field(default_factory=_Poetry)


class _PyProject(msgspec.Struct):
    tool: _Tool = msgspec.field(default_factory=_Tool)


class _Origin(msgspec.Struct):
    registry: str = ""
    """uv: the URL of the index."""


class _File(msgspec.Struct):
    url: str = ""
    hash: str = ""
    hashes: dict[str, str] = {}


class _Package(msgspec.Struct):
    """A package of `uv.lock` (`[[package]]`) or of `pylock.toml` (`[[packages]]`)."""

    name: str
    source: _Origin = msgspec.field(default_factory=_Origin)
    index: str = ""
    wheels: list[_File] = []


class _Lock(msgspec.Struct):
    package: list[_Package] = []
    packages: list[_Package] = []


def look(source: Path | None, environ: Mapping[str, str], facts: FactCache | None = None) -> PackageSources:
    """Return the sources of variables, of the project that contains `source`, and of the user's files, the nearest first.

    Without `source`, only the sources of the user and the machine are returned. `facts` caches lock files by their
    sha256, since parsing their TOML takes about a second per MB.
    """
    reader = _Reader(environ, facts)
    reader.add_variables()
    for directory in project_directories(source, environ) if source is not None else ():
        reader.add_directory(directory)
    for path in _user_files(environ):
        reader.add_uv(reader.read(path, _Uv), path.parent)
    return reader.sources()


class _Reader:
    """Collects the sources from several files."""

    def __init__(self, environ: Mapping[str, str], facts: FactCache | None) -> None:
        self._environ = environ
        self._facts = facts
        self._entries: list[_Entry] = []
        """Entries with absolute URLs, which have the credentials from variables."""
        self._names: dict[str, set[str]] = {}
        """Name of an index -> the distributions that are pinned to it."""
        self._files: dict[str, list[LockedFile]] = {}
        self._problems: list[str] = []

    def sources(self) -> PackageSources:
        """Return the collected sources. As in uv, the first of several entries with the same name counts."""
        indexes: dict[str, Index] = {}
        find_links: dict[str, None] = {}
        replaces_default = False
        used_names: set[str] = set()
        for entry in self._entries:
            if entry.name and entry.name in used_names:
                continue
            used_names.add(entry.name)
            if entry.format == "flat":
                find_links[entry.url] = None
                continue
            replaces_default = replaces_default or entry.default or entry.priority == "default"
            names = frozenset(self._names.get(entry.name, ())) if entry.explicit or entry.priority == "explicit" else None
            _add_index(indexes, entry.url.rstrip("/"), names)
        if len(indexes) > MOST or len(find_links) > MOST:
            self._problems.append(f"the project names more than {MOST} indexes or find-links; only the first {MOST} are used")
        return PackageSources(
            indexes=tuple(index for index in indexes.values() if index.names != frozenset())[:MOST],
            find_links=tuple(find_links)[:MOST],
            replaces_default=replaces_default,
            files={name: tuple(files) for name, files in self._files.items()},
            problems=tuple(redact.line(problem) for problem in self._problems),
        )

    def add_variables(self) -> None:
        """Add the sources of uv's variables."""
        directory = Path.cwd()
        for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            for text in self._environ.get(variable, "").split():
                match = _NAMED.fullmatch(text)
                name, url = (match[1], match[2]) if match else ("", text)
                default = variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
                self._add(_Entry(url=url, name=name, default=default), directory, variable, "UV_INDEX_")
        for text in filter(None, re.split(r"[,\s]", self._environ.get("UV_FIND_LINKS", ""))):
            self._add(_Entry(url=text, format="flat"), directory, "UV_FIND_LINKS")

    def add_directory(self, directory: Path) -> None:
        """Add the sources of all files in a directory of the project."""
        tool = self.read(directory / "pyproject.toml", _PyProject).tool
        if not _is_set(self._environ, "UV_NO_CONFIG", "UV_CONFIG_FILE"):
            self.add_uv(self.read(directory / "uv.toml", _Uv), directory)
            self.add_uv(tool.uv, directory)
        for group in (tool.poetry, *tool.poetry.group.values()):
            for name, value in group.dependencies.items():
                for pin in value if isinstance(value, list) else [value]:
                    if isinstance(pin, dict) and isinstance(pin.get("source"), str):
                        self._names.setdefault(pin["source"], set()).add(canonicalize_name(name))
        where = str(directory / "pyproject.toml")
        for entry in tool.poetry.source:
            self._add(entry, directory, where, "POETRY_HTTP_BASIC_")
        for pattern in _LOCK_FILES:
            for path in sorted(directory.glob(pattern)):
                self._add_lock(self.read(path, _Lock))
        for path in sorted(directory.glob("requirements*.txt")):
            self._add_requirements(path)

    def add_uv(self, uv: _Uv, directory: Path) -> None:
        """Add the sources of a `uv.toml`, or of `[tool.uv]` of a `pyproject.toml`, in this directory."""
        for name, pins in uv.sources.items():
            for pin in pins if isinstance(pins, list) else [pins]:
                self._names.setdefault(pin.index, set()).add(canonicalize_name(name))
        where = f"uv's configuration in {directory}"
        for locations in (uv, uv.pip):
            for url in locations.find_links:
                self._add(_Entry(url=url, format="flat"), directory, where)
            if not uv.no_index:
                for url in locations.extra_index_url:
                    self._add(_Entry(url=url), directory, where)
                self._add(_Entry(url=locations.index_url, default=True), directory, where)
        for entry in () if uv.no_index else uv.index:
            self._add(entry, directory, where, "UV_INDEX_")

    def read(self, path: Path, kind: type[_T]) -> _T:
        """Read a TOML file. The result is empty if the file does not exist, or if there is a problem, which is recorded."""
        try:
            data = read_regular(path, LARGEST)
            return self._parse_lock(data, kind) if kind is _Lock else msgspec.toml.decode(data, type=kind)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._problems.append(f"the package sources in {path} are not used, because it cannot be read: {error.strerror}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._problems.append(f"the package sources in {path} are not used, because it is not valid: {error}")
        return kind()

    def _parse_lock(self, data: bytes, kind: type[_T]) -> _T:
        """Parse a lock file, or take the result from the cache if the same bytes were parsed before."""
        key = f"1 {hashlib.sha256(data).hexdigest()}"
        lock = self._facts.recall("lock-file", key, kind) if self._facts is not None else None
        if lock is None:
            lock = msgspec.toml.decode(data, type=kind)
            encoded = codec.canonical(lock)
            # A URL with one of these characters may contain a credential, which must not be stored.
            if self._facts is not None and b"@" not in encoded and b"?" not in encoded:
                self._facts.put("lock-file", key, encoded)
        return lock

    def _add_requirements(self, path: Path) -> None:
        """Add the indexes and find-links of the options in a requirements file."""
        try:
            text = read_regular(path, LARGEST).decode("utf-8", "replace")
        except OSError:
            return
        for option, url in _OPTION.findall(text):
            self._add(_Entry(url=url, format="flat" if option in ("-f", "--find-links") else ""), path.parent, str(path))

    def _add_lock(self, lock: _Lock) -> None:
        for package in (*lock.package, *lock.packages):
            name = canonicalize_name(package.name)
            index = redact.url(package.index or package.source.registry)
            for file in package.wheels:
                digest = _SHA256.fullmatch(file.hash or file.hashes.get("sha256", ""))
                if digest is not None and file.url.startswith(("http://", "https://")):
                    self._files.setdefault(name, []).append(LockedFile(file.url, digest[1], index))

    def _add(self, entry: _Entry, directory: Path, where: str, prefix: str = "") -> None:
        """Add an entry. A path in it is relative to `directory`. `prefix`: of the names of variables with its credentials."""
        if not entry.url:
            return
        if "${" in entry.url:
            self._problems.append(f"{where}: the package source {redact.url(entry.url)} is not used, because it needs a variable")
        elif "://" not in entry.url:
            self._entries.append(msgspec.structs.replace(entry, url=str((directory / entry.url).absolute())))
        elif _is_location(entry.url):
            url = _with_credentials(entry.url, prefix, entry.name, self._environ)
            self._entries.append(msgspec.structs.replace(entry, url=url))
        else:
            self._problems.append(
                f"{where}: the package source {redact.url(entry.url)} is not used, because it is not an http, https or file URL"
            )


def _add_index(indexes: dict[str, Index], url: str, names: frozenset[str] | None) -> None:
    """Add an index, or add names to an existing index. `names`: the distributions to query it for; None for all."""
    index = indexes.get(url, Index(url, frozenset()))
    indexes[url] = Index(url, None if names is None or index.names is None else names | index.names)


def _user_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of the user's `uv.toml` and the machine's, or only the path in $UV_CONFIG_FILE."""
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
    """Return the URL with the user and password from the variables for the index of this name."""
    start = prefix + re.sub(r"[^A-Z0-9]", "_", name.upper())
    user, password = environ.get(f"{start}_USERNAME", ""), environ.get(f"{start}_PASSWORD", "")
    parts = urllib.parse.urlsplit(url)
    if not prefix or not name or not (user or password) or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        return url
    credentials = f"{urllib.parse.quote(user, safe='')}:{urllib.parse.quote(password, safe='')}@"
    return urllib.parse.urlunsplit(parts._replace(netloc=credentials + parts.netloc))


def _is_location(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "file" or (parts.scheme in ("http", "https") and bool(parts.hostname))
