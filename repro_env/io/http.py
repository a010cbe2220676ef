"""HTTP: the only door to indexes and wheels, opened with pip's own keys.

Indexes, find-links, certificates, proxies, trusted hosts, netrc, keyring, timeouts, retries and the HTTP
cache are those of pip: its configuration files and `PIP_*` variables, read by its own parser.
Texts that leave here are redacted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from repro_env.io import settings
from repro_env.io.answer import (
    LATER,
    MAX_PAGE,
    chunks,
    content_range,
    content_type,
    cut,
    finish,
    length,
    refused,
    strong_tag,
    translated,
    whole_body,
)
from repro_env.io.files import CHUNK, open_regular, read_regular
from repro_env.io.pip import build, config_files, configured, default_index
from repro_env.io.ranges import RangeFile
from repro_env.model import codec, redact
from repro_env.model.errors import NetworkError
from repro_env.model.sources import NONE, Index, PackageSources

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.1, text/html;q=0.01"
"""As PEP 691 has it: JSON where the index speaks it."""
TRIES = 3
"""Of a transfer that was cut, or of a server that says "too many requests"."""
PASSED = (403, 404, 410)
"""Statuses that an index page may have: many indexes say one of these of a project they do not hold."""


_WITH_USER = re.compile(rb"://[^\s/\"'<>@]{1,500}@")
_IN_QUERY = re.compile(rb"[?&;]([A-Za-z0-9_-]{1,60})=")


class Configuration(msgspec.Struct, frozen=True):
    """What pip is configured with. `indexes` and `find_links` may hold credentials: only `shown` is for people and files."""

    indexes: tuple[Index, ...]
    find_links: tuple[str, ...]
    shown: tuple[str, ...]
    """Indexes, then find-links, redacted, in their order."""


class Page(msgspec.Struct, frozen=True):
    """An answer to `get_page`. The body is empty unless the status is 200."""

    status: int
    """200, or one of `PASSED`."""
    url: str
    """Where it was found, after redirects: relative links start here."""
    content_type: str
    """Without parameters, lower case."""
    body: bytes


class PageCache(Protocol):
    """Where pages are kept with their ETags (`store.facts.FactCache`)."""

    def get(self, kind: str, key: str) -> bytes | None: ...
    def put(self, kind: str, key: str, value: bytes) -> None: ...


class _Kept(msgspec.Struct, frozen=True):
    """A page in the cache: these facts as JSON, a newline, the body compressed."""

    etag: str
    modified: str
    url: str
    content_type: str


def local_path(url: str) -> Path | None:
    """The path of a `file:` URL on this machine, else None."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(urllib.parse.unquote(parts.path))


class Session:
    """Requests as pip would make them. Safe to use from several threads: each gets a pip session of its own."""

    def __init__(self, *, prefix: str = "", cache: PageCache | None = None, sources: PackageSources = NONE) -> None:
        """`prefix` is the environment whose own `pip.conf` counts. Raises `LockError` when pip cannot be used so.

        `sources`: indexes and find-links besides those of pip's configuration.

        With a cache that knows what pip said to the same settings, pip starts when something has to be asked.
        """
        self._prefix = prefix
        self._cache = cache
        self.sources = sources
        self._own = threading.local()
        self._all: list[Any] = []
        self._lock = threading.Lock()
        self._asked: tuple[Any, Any] | None = None
        self.shown = self._shown()

    @property
    def configuration(self) -> Configuration:
        """What pip is configured with, and `sources`. Raises `LockError` when pip cannot be used so."""
        options = self._pip()[1]
        indexes = _indexes(options)
        own = tuple(dict.fromkeys(_as_url(index) for index in indexes))
        known = {url.rstrip("/") for url in own}
        named = () if options.no_index else self.sources.indexes
        more = [msgspec.structs.replace(index, url=_as_url(index.url)) for index in named if _as_url(index.url) not in known]
        return Configuration(
            indexes=(*map(Index, own), *more),
            find_links=tuple(dict.fromkeys([*options.find_links, *self.sources.find_links])),
            shown=tuple(
                dict.fromkeys(
                    redact.url(_as_url(location))
                    for location in [*indexes, *options.find_links, *(index.url for index in more), *self.sources.find_links]
                )
            ),
        )

    def get_page(self, url: str) -> Page:
        """One page of an index, asked anew of the server (ETag). Statuses of `PASSED` are an answer; others raise."""
        path = local_path(url)
        if path is not None:
            return _local_page(path)
        kept = _unpack(self._cache.get("page", redact.url(url))) if self._cache is not None else None
        headers = {"Accept": ACCEPT, "Cache-Control": "max-age=0"}
        if kept is not None:
            if kept[0].etag:
                headers["If-None-Match"] = kept[0].etag
            elif kept[0].modified:
                headers["If-Modified-Since"] = kept[0].modified
        for _ in range(TRIES):
            with self._open(url, headers, passed=(200, 304, *PASSED)) as response:
                if response.status_code != 200:
                    finish(response)
                if response.status_code == 304 and kept is not None:
                    return Page(200, kept[0].url, kept[0].content_type, kept[1])
                if response.status_code != 200:
                    return Page(response.status_code, response.url, "", b"")
                body = whole_body(response, url)
                if body is None:
                    continue
                page = Page(200, response.url, content_type(response), body)
                if self._cache is not None and not getattr(response, "from_cache", False):
                    self._keep(url, page, response.headers)
                return page
        raise cut(url)

    def open_range(self, url: str) -> BinaryIO:
        """A seekable file that fetches what is read of it. `RangesRefusedError` when the server only gives it whole.

        Its attribute `size` is the size of the whole file in bytes.
        """
        path = local_path(url)
        if path is not None:
            return _local_file(path)
        return cast("BinaryIO", RangeFile(lambda headers: self._open(url, headers, passed=(200, 206, 416), plain=True), url))

    def download(self, url: str) -> Iterator[bytes]:
        """The bytes of a file. A cut transfer goes on where it ended; nothing is checked here but the length."""
        path = local_path(url)
        if path is not None:
            with _local_file(path) as file:
                while chunk := file.read(CHUNK):
                    yield chunk
            return
        done, total, tag = 0, -1, ""
        for attempt in range(TRIES + 1):
            headers = {"Accept-Encoding": "identity"}
            if done:
                headers |= {"Range": f"bytes={done}-"} | ({"If-Range": tag} if tag else {})
            with self._open(url, headers, passed=(200, 206) if done else (200,), plain=attempt > 0) as response:
                skip = done if response.status_code == 200 else 0
                if response.status_code == 206 and content_range(response)[0] != done:
                    raise NetworkError("answered with another part of the file than asked", where=redact.url(url), hint=LATER)
                if not done:
                    total, tag = length(response), strong_tag(response)
                for chunk in chunks(response):
                    part = chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    done += len(part)
                    if part:
                        yield part
            if done >= total:  # -1 when the server did not say
                return
        raise cut(url)

    def close(self) -> None:
        """Close all connections, those of other threads too."""
        for session in self._all:
            session.close()

    def __enter__(self) -> Session:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, url: str, page: Page, headers: Mapping[str, str]) -> None:
        import zlib

        kept = _Kept(headers.get("ETag", ""), headers.get("Last-Modified", ""), page.url, page.content_type)
        if "no-store" in headers.get("Cache-Control", "") or not (kept.etag or kept.modified) or not _is_public(page):
            return
        if self._cache is not None:
            # By its redacted URL: a hash of one with a password could be searched for it.
            self._cache.put("page", redact.url(url), msgspec.json.encode(kept) + b"\n" + zlib.compress(page.body, 1))

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str], *, passed: tuple[int, ...], plain: bool = False) -> Iterator[Any]:
        """Send a GET; the body is not read yet. `plain`: past pip's cache, which knows no parts of files."""
        response = self._sent(url, headers, plain=plain)
        try:
            if response.status_code not in passed:
                raise refused(response.status_code, url)
            with translated(url):
                yield response
        finally:
            response.close()

    def _sent(self, url: str, headers: Mapping[str, str], *, plain: bool) -> Any:
        session = self._session(plain=plain)
        attempt = 0
        while True:
            with translated(url):
                response: Any = session.get(url, headers=dict(headers), stream=True)
                if not response.url.lower().startswith(("http://", "https://")):  # pip's sessions read files too
                    response.close()
                    raise NetworkError("redirects to a file of this machine", where=redact.url(url), hint=LATER)
                if response.status_code != 429 or attempt == TRIES:
                    return response
                response.close()
            time.sleep(0.25 * 2**attempt)  # pip's own retries wait for Retry-After when the server gives one
            attempt += 1

    def _pip(self) -> tuple[Any, Any]:
        """pip's install command and its options."""
        with self._lock:
            if self._asked is None:
                command, options = configured(self._prefix)
                if self.sources.replaces_default and options.index_url == default_index():
                    options.index_url = ""
                self._asked = command, options
            return self._asked

    def _shown(self) -> tuple[str, ...]:
        """`Configuration.shown`, from the cache where all that decides it is as it was."""
        urls = [index.url for index in self.sources.indexes]
        key = settings.key(self._prefix) + repr((urls, self.sources.find_links, self.sources.replaces_default))
        kept = self._cache.get("pip-settings", key) if self._cache is not None else None
        with contextlib.suppress(msgspec.DecodeError):
            if kept is not None and (known := codec.decoder(settings.Settings).decode(kept)).hold:
                return known.shown
        shown = self.configuration.shown
        if self._cache is not None:
            command, options = self._pip()
            files = config_files(command)
            locations = [*_indexes(options), *options.find_links, *(index.url for index in self.sources.indexes)]
            there = tuple((location, Path(location).exists()) for location in locations if "://" not in location)
            found = settings.Settings(files, settings.state_of(files), there, shown)
            self._cache.put("pip-settings", key, msgspec.json.encode(found))
        return shown

    def _session(self, *, plain: bool) -> Any:
        name = "plain" if plain else "cached"
        if not hasattr(self._own, name):
            session = build(*self._pip(), plain=plain, indexes=[index.url for index in self.sources.indexes])
            setattr(self._own, name, session)
            self._all.append(session)
        return getattr(self._own, name)


def _indexes(options: Any) -> list[str]:
    return [] if options.no_index else [one for one in (options.index_url, *options.extra_index_urls) if one]


def _as_url(location: str) -> str:
    """Index and find-links options may be plain paths."""
    return Path(location).absolute().as_uri() if Path(location).exists() else location


def _local_page(path: Path) -> Page:
    if path.is_dir():
        path /= "index.html"
    try:
        return Page(200, path.as_uri(), "text/html", read_regular(Path(os.path.realpath(path)), MAX_PAGE))
    except (FileNotFoundError, NotADirectoryError):
        return Page(404, path.as_uri(), "", b"")
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", where=str(path), hint="look at its permissions") from None


def _local_file(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", _LocalFile(path))
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", where=str(path), hint="name one that is there") from None


class _LocalFile(io.FileIO):
    def __init__(self, path: Path) -> None:
        super().__init__(open_regular(Path(os.path.realpath(path))))
        self.size = os.fstat(self.fileno()).st_size


def _is_public(page: Page) -> bool:
    """Whether a page can be kept on disk: no URL of it, nor its own, gives access to anything."""
    if redact.url(page.url) != page.url or _WITH_USER.search(page.body):
        return False
    return b"?" not in page.body or not any(redact.gives_access(match[1].decode()) for match in _IN_QUERY.finditer(page.body))


def _unpack(value: bytes | None) -> tuple[_Kept, bytes] | None:
    import zlib

    if value is None:
        return None
    head, _, body = value.partition(b"\n")
    try:
        return codec.decoder(_Kept).decode(head), zlib.decompress(body)
    except (msgspec.DecodeError, zlib.error):
        return None  # written by another version: ask again
