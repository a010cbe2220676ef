"""HTTP requests to package indexes, with pip's configuration.

Indexes, find-links, certificates, proxies, trusted hosts, netrc, keyring, timeouts, retries and the HTTP cache are
those of pip: pip's own parser reads its configuration files and `PIP_*` variables. Errors contain redacted URLs only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.parse
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from repro_env.io import http
from repro_env.io.files import chunks_of, open_regular, read_regular
from repro_env.io.http import LATER, TRIES, Answer, RangeFile, Sessions, chain, cut_error, download, network_error, pause
from repro_env.io.pip import build, configured, default_index
from repro_env.schema import redact
from repro_env.schema.errors import NetworkError, os_errors_as
from repro_env.schema.sources import NONE, PackageSources

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.1, text/html;q=0.01"
"""Prefer JSON over HTML, as in PEP 691."""
ABSENT = (403, 404, 410)
"""Statuses with which indexes answer for a project that they do not have."""
_FINAL = {*range(400, 500)} - {408, 425, 429}
"""Statuses that will be the same again: the others of the 4xx ask for another try (RFC 9110, RFC 8470, RFC 6585)."""
MAX_PAGE = 64 << 20
"""Largest size of an index page, in bytes. Real pages have at most about 6 MB."""


class Configuration(msgspec.Struct, frozen=True):
    """pip's configuration. `indexes` and `find_links` may contain credentials: print and store only `shown`."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    shown: tuple[str, ...]
    """The redacted indexes, then the redacted find-links, in order."""


class Page(msgspec.Struct, frozen=True):
    """The result of `get_page`. The body is empty unless the status is 200."""

    status: int
    """200, or one of `ABSENT`."""
    url: str
    """The URL of the page after redirects, to which its relative links refer."""
    content_type: str
    """The media type without parameters, in lower case."""
    body: bytes


def local_path(url: str) -> Path | None:
    """Return the path of a `file:` URL on this machine; None for other URLs."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(urllib.parse.unquote(parts.path))


class Session(contextlib.AbstractContextManager["Session"]):
    """Makes requests as pip does. Several threads can use it: each thread has its own pip session."""

    def __init__(self, *, prefix: str = "", sources: PackageSources = NONE) -> None:
        """`prefix`: the environment whose `pip.conf` applies. `sources`: additional indexes and find-links."""
        self._prefix = prefix
        self.sources = sources
        self._sessions = Sessions(lambda name: build(*self._pip(), plain=name == "plain", indexes=self.sources.indexes))
        self._lock = threading.Lock()
        self._pip_options: tuple[Any, Any] | None = None

    @property
    def configuration(self) -> Configuration:
        """pip's configuration, together with `sources`. Raises `LockError` if pip cannot be used."""
        options = self._pip()[1]
        indexes = _indexes(options)
        urls = tuple(dict.fromkeys(_as_url(index) for index in indexes))
        stripped = {url.rstrip("/") for url in urls}
        sources = () if options.no_index else self.sources.indexes
        added = [_as_url(index) for index in sources if _as_url(index) not in stripped]
        return Configuration(
            indexes=(*urls, *added),
            find_links=tuple(dict.fromkeys([*options.find_links, *self.sources.find_links])),
            shown=tuple(
                dict.fromkeys(
                    redact.url(_as_url(location))
                    for location in [*indexes, *options.find_links, *added, *self.sources.find_links]
                )
            ),
        )

    def get_page(self, url: str) -> Page:
        """Fetch a page of an index. Raises `NetworkError` unless its status is 200 or in `ABSENT`.

        A page in pip's HTTP cache is used if the server answers that it has not changed.
        """
        path = local_path(url)
        if path is not None:
            return _local_page(path)
        headers = {"Accept": ACCEPT, "Cache-Control": "max-age=0"}
        for failures in range(TRIES):
            if failures:
                pause(failures)
            with self._open(url, headers, expected=(200, *ABSENT)) as answer:
                if answer.status != 200:
                    return Page(answer.status, answer.url, "", b"")
                body = answer.read(MAX_PAGE)
                if body is not None:
                    return Page(200, answer.url, answer.content_type, body)
        raise cut_error(redact.url(url))

    def open_range(self, url: str) -> BinaryIO:
        """Open a seekable remote file that fetches only the parts that are read.

        Raises `RangesRefusedError` if the server does not support range requests.
        """
        path = local_path(url)
        if path is not None:
            with _local_errors(path):
                return os.fdopen(open_regular(path.resolve()), "rb")
        return cast(
            "BinaryIO", RangeFile(lambda headers: self._open(url, headers, expected=(200, 206, 416), plain=True), redact.url(url))
        )

    def download(self, url: str) -> Generator[bytes, None, None]:
        """Yield the bytes of a file. A transfer that was cut off is resumed. Only the length is checked."""
        path = local_path(url)
        if path is not None:
            with _local_errors(path):
                yield from chunks_of(path.resolve())
            return
        yield from download(
            lambda headers: self._open(url, {"Accept-Encoding": "identity", **headers}, expected=(200, 206), plain=bool(headers)),
            redact.url(url),
        )

    def close(self) -> None:
        """Close the connections of all threads."""
        self._sessions.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str], *, expected: tuple[int, ...], plain: bool = False) -> Iterator[Answer]:
        """Send a GET request, without reading the body. `plain`: bypass pip's cache, which does not support ranges."""
        with _translated(url):
            response = self._sessions.get("plain" if plain else "cached").get(url, headers=dict(headers), stream=True)
            with contextlib.closing(Answer(response)) as answer:
                if not answer.url.lower().startswith(("http://", "https://")):  # pip's sessions also read files
                    raise NetworkError("the server redirects to a local file", where=redact.url(url), hint=LATER)
                if answer.status not in expected:
                    raise status_error(answer.status, url) from (http.FinalError() if answer.status in _FINAL else None)
                yield answer

    def _pip(self) -> tuple[Any, Any]:
        """Return pip's install command and its options."""
        with self._lock:
            if self._pip_options is None:
                command, options = configured(self._prefix)
                if self.sources.replaces_default and options.index_url == default_index():
                    options.index_url = ""
                self._pip_options = command, options
            return self._pip_options


def status_error(status: int, url: str) -> NetworkError:
    """Return the error for an unexpected HTTP status."""
    what, hint = f"the server answered with status {status}", LATER
    if status in (401, 403, 407):
        what = f"the server requires credentials that pip does not have (status {status})"
        hint = "put them where pip finds them: netrc, keyring, or the URL in pip's configuration"
    elif status in (404, 410):
        what = f"the file does not exist on the server (status {status})"
        hint = "look for the file elsewhere, or capture again on a machine that has it"
    return NetworkError(what, where=redact.url(url), hint=hint)


def _indexes(options: Any) -> list[str]:
    return [] if options.no_index else [url for url in (options.index_url, *options.extra_index_urls) if url]


def _as_url(location: str) -> str:
    """Return the location as a URL. In pip's options an index may also be a path."""
    return Path(location).absolute().as_uri() if Path(location).exists() else location


def _local_page(path: Path) -> Page:
    if path.is_dir():
        path /= "index.html"
    with _local_errors(path):
        try:
            return Page(200, path.as_uri(), "text/html", read_regular(path.resolve(), MAX_PAGE))
        except (FileNotFoundError, NotADirectoryError):
            return Page(404, path.as_uri(), "", b"")


def _local_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    return os_errors_as(NetworkError, "this file cannot be read", where=path, hint="check the path and its permissions")


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate the exceptions of pip, requests and urllib3 to `NetworkError`."""
    try:
        yield
    except NetworkError:
        raise
    except Exception as error:
        if not any(type(cause).__module__.startswith("pip.") or isinstance(cause, OSError) for cause in chain(error)):
            raise
        raise network_error(error, url) from None
