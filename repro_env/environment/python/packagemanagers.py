"""Find the package sources in the configuration of uv and Poetry, and in requirements files: indexes, find-links, wheels
of lock files.

The files of a project may be malicious. Each is read only up to a maximum size, with a schema of the few necessary keys, and
its sources are only candidates. Credentials from variables are used only in the URLs of requests.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from packaging.utils import canonicalize_name

from repro_env.environment.python.selection import project_directories
from repro_env.io.files import read_regular
from repro_env.schema import redact
from repro_env.schema.sources import LockedFile, PackageSources

LARGEST = 16 << 20
"""Maximum bytes of a file; a lock file of a thousand packages has about 5 MB."""
MOST = 32
"""Maximum number of indexes, and of find-links, since each is queried for every distribution."""
_LOCK_FILES = ("uv.lock", "pylock.toml", "pylock.*.toml")
_OPTION = re.compile(r"^[ \t]*(-i|--index-url|--extra-index-url|-f|--find-links)(?:[ \t]+|=)(\S+)", re.MULTILINE)
_NAMED = re.compile(r"(?:([A-Za-z0-9_.-]+)=)?(\S+)")
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

_T = TypeVar("_T")


class _Entry(msgspec.Struct):
    """An entry of `[[tool.uv.index]]` or `[[tool.poetry.source]]`."""

    url: str = ""
    name: str = ""
    default: bool = False
    format: str = ""
    """uv: `flat` for find-links."""
    priority: str = ""
    """Poetry: `default`."""


class _Locations(msgspec.Struct, rename="kebab"):
    index_url: str = ""
    extra_index_url: list[str] = []
    find_links: list[str] = []


class _Uv(_Locations, rename="kebab"):
    index: list[_Entry] = []
    no_index: bool = False
    pip: _Locations = msgspec.field(default_factory=_Locations)


class _Poetry(msgspec.Struct):
    source: list[_Entry] = []


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


def look(source: Path | None, environ: Mapping[str, str]) -> PackageSources:
    """Return the sources of variables, of the project that contains `source`, and of the user's files, the nearest first.

    Without `source`, only the sources of the user and the machine are returned.
    """
    reader = _Reader(environ)
    reader.add_variables()
    for directory in project_directories(source, environ) if source is not None else ():
        reader.add_directory(directory)
    for path in _user_files(environ):
        reader.add_uv(reader.read(path, _Uv), path.parent)
    return reader.sources()


class _Reader:
    """Collects the sources from several files."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._entries: list[_Entry] = []
        """Entries with absolute URLs, which have the credentials from variables."""
        self._files: dict[str, list[LockedFile]] = {}
        self._problems: list[str] = []

    def sources(self) -> PackageSources:
        """Return the collected sources. As in uv, the first of several entries with the same name counts."""
        first = {entry.name: entry for entry in reversed(self._entries)}
        entries = [entry for entry in self._entries if not entry.name or first[entry.name] is entry]
        indexes = dict.fromkeys(entry.url.rstrip("/") for entry in entries if entry.format != "flat")
        find_links = dict.fromkeys(entry.url for entry in entries if entry.format == "flat")
        if len(indexes) > MOST or len(find_links) > MOST:
            self._problems.append(f"the project names more than {MOST} indexes or find-links; only the first {MOST} are used")
        return PackageSources(
            indexes=tuple(indexes)[:MOST],
            find_links=tuple(find_links)[:MOST],
            replaces_default=any(entry.default or entry.priority == "default" for entry in entries),
            files={name: tuple(files) for name, files in self._files.items()},
            problems=tuple(redact.line(problem) for problem in self._problems),
        )

    def add_variables(self) -> None:
        """Add the sources of uv's variables."""
        directory = Path.cwd()
        for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            for text in self._environ.get(variable, "").split():
                name, url = next(iter(_NAMED.findall(text)))
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
        for entry in tool.poetry.source:
            self._add(entry, directory, str(directory / "pyproject.toml"), "POETRY_HTTP_BASIC_")
        for pattern in _LOCK_FILES:
            for path in sorted(directory.glob(pattern)):
                self._add_lock(self.read(path, _Lock))
        for path in sorted(directory.glob("requirements*.txt")):
            for option, url in _OPTION.findall(self._read_text(path)):
                self._add(_Entry(url=url, format="flat" if option in ("-f", "--find-links") else ""), directory, str(path))

    def add_uv(self, uv: _Uv, directory: Path) -> None:
        """Add the sources of a `uv.toml`, or of `[tool.uv]` of a `pyproject.toml`, in this directory."""
        where = f"uv's configuration in {directory}"
        for locations in (uv, uv.pip):
            entries = [_Entry(url=url, format="flat") for url in locations.find_links]
            if not uv.no_index:
                entries += [*map(_Entry, locations.extra_index_url), _Entry(url=locations.index_url, default=True)]
            for entry in entries:
                self._add(entry, directory, where)
        for entry in () if uv.no_index else uv.index:
            self._add(entry, directory, where, "UV_INDEX_")

    def read(self, path: Path, kind: type[_T]) -> _T:
        """Read a TOML file. The result is empty if the file does not exist, or if there is a problem, which is recorded."""
        try:
            return msgspec.toml.decode(self._read_text(path), type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            self._problems.append(f"the package sources in {path} are not used, because it is not valid: {error}")
            return kind()

    def _read_text(self, path: Path) -> str:
        """The text of a file; empty if it does not exist or cannot be read, which is recorded as a problem."""
        try:
            return read_regular(path, LARGEST).decode("utf-8", "replace")
        except FileNotFoundError:
            pass
        except OSError as error:
            self._problems.append(f"the package sources in {path} are not used, because it cannot be read: {error.strerror}")
        return ""

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
        if "://" not in entry.url:
            url = str((directory / entry.url).absolute())
        elif "${" in entry.url or not _is_location(entry.url):
            why = "it needs a variable" if "${" in entry.url else "it is not an http, https or file URL"
            self._problems.append(f"{where}: the package source {redact.url(entry.url)} is not used, because {why}")
            return
        else:
            url = _with_credentials(entry.url, prefix, entry.name, self._environ)
        self._entries.append(msgspec.structs.replace(entry, url=url))


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
