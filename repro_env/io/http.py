"""HTTP: the only door to indexes and wheels, opened with pip's own keys.

Indexes, find-links, certificates, proxies, trusted hosts, netrc, keyring, timeouts, retries and the HTTP
cache are those of pip: its configuration files and `PIP_*` variables, read by its own parser. This file is
the only one that knows pip's insides (24.1 to 26); when they are not as known, it says so.
Texts that leave here are redacted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from repro_env.io.files import CHUNK
from repro_env.model import redact
from repro_env.model.errors import LockError, NetworkError

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.1, text/html;q=0.01"
"""As PEP 691 has it: JSON where the index speaks it."""
MAX_PAGE = 256 << 20
"""Bytes of one index page; the largest known is about 6 MB."""
TRIES = 3
"""Of a transfer that was cut, or of a server that says "too many requests"."""
TAIL = 32 << 10
"""Bytes fetched first, from the end: a wheel's central directory, and RECORD mostly too."""
STEP = 32 << 10
"""Bytes fetched at least; doubled for reads that go on where the last fetch ended, up to `MAX_STEP`."""
MAX_STEP = 4 << 20
PASSED = (403, 404, 410)
"""Statuses that an index page may have: many indexes say one of these of a project they do not hold."""


class Configuration(msgspec.Struct, frozen=True):
    """What pip is configured with. `indexes` and `find_links` may hold credentials: only `shown` is for people and files."""

    indexes: tuple[str, ...]
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


class RangesRefusedError(Exception):
    """The server does not give parts of this file: fetch the whole."""


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
    return Path(urllib.request.url2pathname(parts.path))


class Session:
    """Requests as pip would make them. Safe to use from several threads: each gets a pip session of its own."""

    def __init__(self, *, prefix: str = "", cache: PageCache | None = None) -> None:
        """`prefix` is the environment whose own `pip.conf` counts. Raises `LockError` when pip cannot be used so."""
        self._command, self._options = _configured(prefix)
        self._cache = cache
        self._own = threading.local()
        options = self._options
        indexes = [] if options.no_index else [options.index_url, *options.extra_index_urls]
        self.configuration = Configuration(
            indexes=tuple(dict.fromkeys(_as_url(index) for index in indexes if index)),
            find_links=tuple(dict.fromkeys(options.find_links)),
            shown=tuple(redact.url(_as_url(one)) for one in dict.fromkeys([*filter(None, indexes), *options.find_links])),
        )

    def get_page(self, url: str) -> Page:
        """One page of an index, asked anew of the server (ETag). Statuses of `PASSED` are an answer; others raise."""
        path = local_path(url)
        if path is not None:
            return _local_page(path)
        kept = _unpack(self._cache.get("page", url)) if self._cache is not None else None
        headers = {"Accept": ACCEPT, "Cache-Control": "max-age=0"}
        if kept is not None:
            if kept[0].etag:
                headers["If-None-Match"] = kept[0].etag
            elif kept[0].modified:
                headers["If-Modified-Since"] = kept[0].modified
        for _ in range(TRIES):
            with self._open(url, headers, passed=(200, 304, *PASSED)) as response:
                if response.status_code == 304 and kept is not None:
                    return Page(200, kept[0].url, kept[0].content_type, kept[1])
                if response.status_code != 200:
                    return Page(response.status_code, response.url, "", b"")
                body = _whole_body(response, url)
                if body is None:
                    continue
                page = Page(200, response.url, _content_type(response), body)
                if self._cache is not None and not getattr(response, "from_cache", False):
                    self._keep(url, page, response.headers)
                return page
        raise _cut(url)

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
                if response.status_code == 206 and _content_range(response)[0] != done:
                    raise NetworkError("answered with another part of the file than asked", where=redact.url(url), hint=_LATER)
                if not done:
                    total, tag = _length(response), _strong_tag(response)
                for chunk in _chunks(response):
                    part = chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    done += len(part)
                    if part:
                        yield part
            if done >= total:  # -1 when the server did not say
                return
        raise _cut(url)

    def close(self) -> None:
        """Close this thread's connections; those of ended threads are closed with them."""
        for session in vars(self._own).values():
            session.close()

    def _keep(self, url: str, page: Page, headers: Mapping[str, str]) -> None:
        import zlib

        kept = _Kept(headers.get("ETag", ""), headers.get("Last-Modified", ""), page.url, page.content_type)
        if self._cache is not None and (kept.etag or kept.modified) and "no-store" not in headers.get("Cache-Control", ""):
            self._cache.put("page", url, msgspec.json.encode(kept) + b"\n" + zlib.compress(page.body, 1))

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str], *, passed: tuple[int, ...], plain: bool = False) -> Iterator[Any]:
        """Send a GET; the body is not read yet. `plain`: past pip's cache, which knows no parts of files."""
        response = self._sent(url, headers, plain=plain)
        try:
            if response.status_code not in passed:
                raise _refused(response.status_code, url)
            with _translated(url):
                yield response
        finally:
            response.close()

    def _sent(self, url: str, headers: Mapping[str, str], *, plain: bool) -> Any:
        session = self._session(plain=plain)
        attempt = 0
        while True:
            with _translated(url):
                response: Any = session.get(url, headers=dict(headers), stream=True)
                if response.status_code != 429 or attempt == TRIES:
                    return response
                response.close()
            time.sleep(0.25 * 2**attempt)  # pip's own retries wait for Retry-After when the server gives one
            attempt += 1

    def _session(self, *, plain: bool) -> Any:
        name = "plain" if plain else "cached"
        if not hasattr(self._own, name):
            setattr(self._own, name, _build(self._command, self._options, plain=plain))
        return getattr(self._own, name)


class RangeFile(io.RawIOBase):
    """A remote file as a seekable one. Parts once fetched stay in memory until it is closed."""

    def __init__(self, get: Callable[[dict[str, str]], contextlib.AbstractContextManager[Any]], url: str) -> None:
        super().__init__()
        self._get = get
        self._url = url
        self._parts: dict[int, bytes] = {}
        self._position = 0
        self._step = STEP
        self._next = -1
        self.size = self._first()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._position, self.size)[whence]
        if start + offset < 0:
            raise OSError("negative seek")
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self._position + size, self.size)
        found = []
        while self._position < end:
            part = self._held(self._position, end)
            found.append(part)
            self._position += len(part)
        return b"".join(found)

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _held(self, position: int, end: int) -> bytes:
        """Bytes from `position` on, at most to `end`; fetched if need be."""
        upper = self.size
        for start, part in self._parts.items():
            if start <= position < start + len(part):
                return part[position - start : end - start]
            if position < start < upper:
                upper = start
        self._step = min(self._step * 2, MAX_STEP) if position == self._next else STEP
        stop = min(upper, max(end, position + self._step))
        self._next = stop
        self._parts[position] = self._fetch(position, stop)
        return self._parts[position][: end - position]

    def _first(self) -> int:
        """Fetch the tail, and so the size."""
        with self._get({**_WHOLE, "Range": f"bytes=-{TAIL}"}) as response:
            if response.status_code == 206:
                start, total = _content_range(response)
                if start >= 0 and total > start and (part := _exactly(response, total - start)) is not None:
                    self._parts[start] = part
                    return total
        # Some servers know no range that counts from the end; what they make of an ordinary one tells the size.
        with self._get({**_WHOLE, "Range": "bytes=0-0"}) as response:
            start, total = _content_range(response) if response.status_code == 206 else (-1, -1)
        if start != 0 or total < 1:
            raise RangesRefusedError
        return total

    def _fetch(self, start: int, stop: int) -> bytes:
        for _ in range(TRIES):
            with self._get({**_WHOLE, "Range": f"bytes={start}-{stop - 1}"}) as response:
                if response.status_code != 206 or _content_range(response) != (start, self.size):
                    raise RangesRefusedError
                part = _exactly(response, stop - start)
            if part is not None:
                return part
        raise _cut(self._url)


_WHOLE = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}
_LATER = "try again; if it stays so, ask who runs that server"


def _configured(prefix: str) -> tuple[Any, Any]:
    """pip's install command and its options as configured."""
    try:
        _quiet()
        command = importlib.import_module("pip._internal.commands.install").InstallCommand("install", "")
        if prefix:
            _site_of(command.parser.config, prefix)
        options, _ = command.parse_args([])
        if options.cache_dir:
            options.cache_dir = os.path.abspath(options.cache_dir)  # noqa: PTH100
            if not importlib.import_module("pip._internal.utils.filesystem").check_path_owner(options.cache_dir):
                options.cache_dir = None
        for name in ("index_url", "extra_index_urls", "find_links", "no_index", "cache_dir", "retries"):
            getattr(options, name)
    except SystemExit:
        raise LockError("pip's configuration cannot be read", where="pip", hint="see what `pip config debug` says") from None
    except Exception as error:  # noqa: BLE001 - whatever a pip with other insides raises
        raise LockError(
            f"pip cannot be used to reach indexes: {redact.line(repr(error))}",
            where=f"pip {_pip_version()}",
            hint="install pip 24.1 to 26 beside repro-env, and see what `pip config debug` says",
        ) from None
    return command, options


def _build(command: Any, options: Any, *, plain: bool) -> Any:
    if plain:
        options = type(options)(vars(options) | {"cache_dir": None})
    try:
        session = command._build_session(options)  # noqa: SLF001
        # Several threads ask at once, so nobody is asked for a password; keyring is as configured.
        session.auth._prompt_for_password = _no_password  # noqa: SLF001
        session.auth._should_save_password_to_keyring = lambda: False  # noqa: SLF001
    except Exception as error:  # noqa: BLE001
        raise LockError(
            f"pip cannot be used to reach indexes: {redact.line(repr(error))}",
            where=f"pip {_pip_version()}",
            hint="install pip 24.1 to 26 beside repro-env",
        ) from None
    return session


def _no_password(netloc: str) -> tuple[None, None, bool]:  # noqa: ARG001
    return None, None, False


def _site_of(config: Any, prefix: str) -> None:
    """Let the captured environment's own `pip.conf` count, not that of the environment that repro-env lives in."""
    listed = config.iter_config_files

    def files() -> Iterator[tuple[Any, list[str]]]:
        for kind, names in listed():
            yield kind, ([str(Path(prefix, "pip.conf"))] if getattr(kind, "value", kind) == "site" else names)

    config.iter_config_files = files


def _quiet() -> None:
    """pip warns through logging, with URLs that nobody redacted; without a handler Python prints them to stderr."""
    logger = logging.getLogger("pip")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False


def _pip_version() -> str:
    try:
        return str(importlib.import_module("pip").__version__)
    except ImportError:
        return "that is missing"


def _as_url(location: str) -> str:
    """Index and find-links options may be plain paths."""
    return Path(location).absolute().as_uri() if Path(location).exists() else location


def _local_page(path: Path) -> Page:
    if path.is_dir():
        path /= "index.html"
    try:
        return Page(200, path.as_uri(), "text/html", path.read_bytes())
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
        super().__init__(path)
        self.size = os.fstat(self.fileno()).st_size


def _whole_body(response: Any, url: str) -> bytes | None:
    """None when the transfer was cut."""
    body = bytearray()
    try:
        for chunk in response.iter_content(CHUNK):
            body += chunk
            if len(body) > MAX_PAGE:
                raise NetworkError(f"is a page of over {MAX_PAGE} bytes", where=redact.url(url), hint=_LATER)
    except _cuts():
        return None
    length = _length(response)
    if length >= 0 and not getattr(response, "from_cache", False) and response.raw.tell() < length:
        return None
    return bytes(body)


def _chunks(response: Any) -> Iterator[bytes]:
    """The body as it comes; ends without a word when the transfer is cut."""
    with contextlib.suppress(*_cuts()):
        yield from response.raw.stream(CHUNK, decode_content=False)


def _exactly(response: Any, size: int) -> bytes | None:
    """A body of this many bytes; None when the transfer was cut."""
    body = bytearray()
    for chunk in _chunks(response):
        body += chunk
        if len(body) > size:
            return None
    return bytes(body) if len(body) == size else None


def _cuts() -> tuple[type[Exception], ...]:
    """What requests and urllib3 raise when a connection breaks within a body."""
    requests = importlib.import_module("pip._vendor.requests.exceptions")
    urllib3 = importlib.import_module("pip._vendor.urllib3.exceptions")
    return (requests.ChunkedEncodingError, requests.ConnectionError, urllib3.HTTPError, ConnectionError, TimeoutError)


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn what pip, requests and urllib3 raise into one sentence."""
    where = redact.url(url)
    try:
        yield
    except NetworkError:
        raise
    except Exception as error:
        kinds = [type(one).__name__ for one in _chain(error)]
        if not any(type(one).__module__.startswith("pip.") or isinstance(one, OSError) for one in _chain(error)):
            raise
        text = " ".join(str(one) for one in _chain(error)).lower()
        proxy = any("Proxy" in kind for kind in kinds)
        if any("SSL" in kind or "Certificate" in kind for kind in kinds) or "certificate" in text or "tls ca" in text:
            what, hint = "its certificate cannot be verified", "set pip's `cert` option to the certificates of your site"
        elif proxy:
            what, hint = "the proxy does not let this through", "look at pip's `proxy` option and the *_PROXY variables"
        elif "name or service" in text or "nameresolution" in text.replace(" ", "") or "getaddrinfo" in text:
            what, hint = "its host name is not known here", "look at the index's name in pip's configuration, and at the network"
        elif any("Timeout" in kind for kind in kinds) or "timed out" in text:
            what, hint = "did not answer in time", "try again, or raise pip's `timeout` option"
        elif "too many" in text and "response" in text:
            what, hint = "answers with errors only", _LATER
        else:
            what, hint = "cannot be reached", "look at the network and at `pip config list`"
        raise NetworkError(what, where=where, hint=hint) from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was made of."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        pending += [other for other in inner if isinstance(other, BaseException)]


def _refused(status: int, url: str) -> NetworkError:
    if status in (401, 403, 407):
        what = f"wants credentials that pip does not have (status {status})"
        hint = "put them where pip finds them: netrc, keyring, or the URL in pip's configuration"
    elif status in (404, 410):
        what, hint = f"is not there (status {status})", "look for the file elsewhere, or capture again where it is"
    elif status == 429:
        what, hint = "gets too many requests (status 429)", "wait a while and try again"
    elif status >= 500:
        what, hint = f"has a problem of its own (status {status})", _LATER
    else:
        what, hint = f"answered with status {status}", _LATER
    return NetworkError(what, where=redact.url(url), hint=hint)


def _cut(url: str) -> NetworkError:
    return NetworkError("breaks off each time before the end", where=redact.url(url), hint=_LATER)


def _length(response: Any) -> int:
    """-1 when not told."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def _content_range(response: Any) -> tuple[int, int]:
    """First byte and size of the whole; (-1, -1) when not told."""
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit.lower() != "bytes" or not (start.isascii() and start.isdigit() and total.isascii() and total.isdigit()):
        return -1, -1
    return int(start), int(total)


def _strong_tag(response: Any) -> str:
    tag = str(response.headers.get("ETag", ""))
    return tag if tag.startswith('"') else ""


def _content_type(response: Any) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _unpack(value: bytes | None) -> tuple[_Kept, bytes] | None:
    import zlib

    if value is None:
        return None
    head, _, body = value.partition(b"\n")
    try:
        return msgspec.json.decode(head, type=_Kept), zlib.decompress(body)
    except (msgspec.DecodeError, zlib.error):
        return None  # written by another version: ask again
