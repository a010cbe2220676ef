"""Answers of HTTP servers, for indexes and registries: their body, ranges of remote files, a minimum transfer rate, failures.

Exceptions of requests, urllib3 and pip are recognized by the names of their classes, since pip has its own copies of both. Their
own messages are not shown, because they may contain the password of a proxy.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from repro_env.io.files import CHUNK
from repro_env.schema import redact
from repro_env.schema.errors import NetworkError

_OPERATOR = "contact the operator of that server"
LATER = f"try again; if the problem persists, {_OPERATOR}"
TRIES = 5
"""Number of tries for a request that can be repeated, and for a transfer that is cut off."""
PATIENCE = 30.0
"""Seconds of waiting that are always allowed for a response, after its first byte."""
MIN_RATE = 1000
"""Bytes that must arrive for each further second of waiting."""
_MAX_HEADERS = 4 << 20
"""Bytes of a response's headers, including those of "100 Continue"."""
_PART = 1 << 14
"""Compressed bytes to read at once. Decompressed, they can be a thousand times larger."""
_DRAIN = 1 << 16
_STEP = 1 << 17
"""Smallest number of bytes of a remote file to fetch. The last ones contain a wheel's central directory, and usually its RECORD."""
_FIRST_PAUSE = 0.5
"""Seconds before the first repetition of a request."""
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})", re.IGNORECASE)


class FinalError(Exception):
    """The cause of an error about an answer that will be the same again."""


class Answer:
    """The answer of a server, from `requests` or from pip's copy of it. Its body can be read once."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.url: str = response.url
        """The URL after redirects. It may contain a signature: print only `redact.url(url)`."""
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int:
        """The value of Content-Length, or -1 if it is missing or invalid."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1

    @property
    def range(self) -> tuple[int, int]:
        """The offset of the first byte and the size of the complete file, or (-1, -1) without a valid Content-Range."""
        match = _RANGE.fullmatch(self.headers.get("Content-Range", ""))
        return (int(match[1]), int(match[2])) if match else (-1, -1)

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Ends without an error if the transfer is cut off."""
        with _end_at_cut():
            yield from self._response.raw.stream(CHUNK, decode_content=False)

    def read(self, limit: int) -> bytes | None:
        """Return the body, or None if the transfer was cut off. Raises `NetworkError` if it has more than `limit` bytes."""
        body = bytearray()
        ended = False
        with _end_at_cut():
            for chunk in self._response.iter_content(_PART) if self.length <= limit else ():
                body += chunk
                if len(body) > limit:
                    break
            ended = True
        if max(self.length, len(body)) > limit:
            what = f"the answer is larger than {limit:,} bytes"
            raise NetworkError(what, where=redact.url(self.url), hint=_OPERATOR) from FinalError
        is_complete = getattr(self._response, "from_cache", False) or self._response.raw.tell() >= self.length
        return bytes(body) if ended and is_complete else None

    def close(self) -> None:
        """End the answer. A short body is read first, so that the connection can be used again."""
        if 0 <= self.length <= _DRAIN or self._response.request.method == "HEAD":
            with _end_at_cut():
                self._response.raw.read(_DRAIN)
        self._response.close()


class Sessions:
    """Sessions of `requests` or pip by name. Each thread has its own, because they are not safe to share."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self._local = threading.local()
        self._all: list[Any] = []

    def get(self, name: str) -> Any:
        """Return the session of this thread, which is made if necessary."""
        own: dict[str, Any] = self._local.__dict__
        if name not in own:
            own[name] = self._make(name)
            self._all.append(own[name])
        return own[name]

    def close(self) -> None:
        """Close the connections of all threads; the next request opens new ones."""
        for session in self._all:
            session.close()


# --- complete files and ranges of a remote file

Get = Callable[[dict[str, str]], AbstractContextManager[Answer]]
"""Sends a GET request with these headers."""


def pause(failures: int) -> None:
    """Wait before a request is repeated: half a second, twice as long after each failure, and not all threads equally long."""
    time.sleep(min(8.0, _FIRST_PAUSE * 2.0 ** (failures - 1)) * random.uniform(0.75, 1.25))  # noqa: S311


def download(get: Get, where: str, size: int = -1, pause: Callable[[int], None] = pause) -> Generator[bytes, None, None]:
    """Yield the bytes of a file. A transfer that was cut off is resumed as often as each try makes progress.

    Only the length is checked. `get` answers with status 200 or 206. `size`: the expected size, or -1 for that of the first
    answer. `pause` is called with the number of failures before a request is repeated.
    """
    done = failures = 0
    while size < 0 or done < size:
        start = done
        with get({"Range": f"bytes={done}-"} if done else {}) as answer:
            if answer.status == 206 and (answer.range[0] != done or size not in (-1, answer.range[1])):
                raise NetworkError("the server sent a different part of the file than the requested one", where=where, hint=LATER)
            skip = done if answer.status == 200 else 0
            size = answer.length if size < 0 else size
            for chunk in answer.chunks():
                if part := chunk[skip:]:
                    done += len(part)
                    yield part
                skip = max(0, skip - len(chunk))
        if size < 0:
            return  # the server did not send the length
        failures = 0 if done - start >= CHUNK else failures + 1
        if failures == TRIES:
            raise cut_error(where)
        if done < size:
            pause(failures)


class RangesRefusedError(Exception):
    """The server does not support range requests for this file. Fetch the complete file instead."""


class RangeFile(io.RawIOBase):
    """A seekable remote file that fetches what is read. Fetched parts stay in memory until it is closed."""

    def __init__(self, get: Get, where: str) -> None:
        """Raises `RangesRefusedError`."""
        super().__init__()
        self._get = get
        self._where = where
        self._parts: dict[int, bytes] = {}
        self._position = 0
        start, self._size, part = self._fetch(f"-{_STEP}", _STEP)
        if start + len(part) != self._size:
            raise RangesRefusedError
        self._parts[start] = part

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._position, self._size)[whence]
        if start + offset < 0:
            raise OSError("negative seek")
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._position + size, self._size)
        parts = []
        while self._position < end:
            part = self._part(self._position, end)
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def _part(self, position: int, end: int) -> bytes:
        """Return bytes from `position` up to `end` or less, and fetch them if necessary."""
        for start, part in self._parts.items():
            if start <= position < start + len(part):
                return part[position - start : end - start]
        stop = min([start for start in self._parts if start > position] + [max(end, position + _STEP)])
        start, size, part = self._fetch(f"{position}-{stop - 1}", stop - position)
        if (start, size, len(part)) != (position, self._size, stop - position):
            raise RangesRefusedError
        self._parts[position] = part
        return part[: end - position]

    def _fetch(self, numbers: str, most: int) -> tuple[int, int, bytes]:
        """Return the offset of a range, the size of the file, and the bytes of the range, at most `most`."""
        for failures in range(TRIES):
            if failures:
                pause(failures)
            headers = {"Accept-Encoding": "identity", "Cache-Control": "no-cache", "Range": f"bytes={numbers}"}
            with self._get(headers) as answer:
                start, size = answer.range
                if answer.status != 206 or start < 0 or size < 1 or answer.length > most:
                    raise RangesRefusedError
                part = answer.read(most)
            if part is not None:
                return start, size, part
        raise cut_error(self._where)


# --- a minimum transfer rate: a time limit on single reads does not stop a server that sends a byte now and then


def enforce_rate(session: Any) -> None:
    """Enforce the minimum transfer rate in a session of `requests` (also pip's), for every later response.

    A slower response raises `NetworkError`. Only the time spent waiting counts, not the time spent processing the bytes.
    """
    for adapter in session.adapters.values():
        for name in ("get_connection", "get_connection_with_tls_context"):
            if (inner := getattr(adapter, name, None)) is not None:
                setattr(adapter, name, functools.partial(_timed_pool, inner))


def _timed_pool(inner: Any, *args: Any, **options: Any) -> Any:
    pool = inner(*args, **options)
    if not issubclass(pool.ConnectionCls, _TimedConnection):
        pool.ConnectionCls = type(pool.ConnectionCls.__name__, (_TimedConnection, pool.ConnectionCls), {})
    return pool


class _TimedConnection:
    """Mixin of a connection: `http.client` calls `response_class` for each response."""

    host: str
    port: int | None

    def response_class(self, sock: Any, *args: Any, **options: Any) -> Any:
        # The socket is not asked for the address: it has none if the server answered and closed the connection during an upload.
        return _timed_response()(f"{self.host}:{self.port}", sock, *args, **options)


@functools.cache
def _timed_response() -> Any:
    from http.client import HTTPResponse  # it imports `ssl`, which takes long

    class Response(HTTPResponse):
        def __init__(self, where: str, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._timed = _TimedReader(self.fp.detach(), where)
            self.fp = io.BufferedReader(self._timed)

        def begin(self) -> None:
            super().begin()
            self._timed.in_headers = False

    return Response


class _TimedReader(io.RawIOBase):
    """The bytes of a socket; measures how long the reader waits for them."""

    def __init__(self, raw: Any, where: str) -> None:
        super().__init__()
        self._raw = raw
        self._where = where
        self._waited = 0.0
        self._count = 0
        self.in_headers = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        if self._count:  # until the first byte, the time limit of the read itself applies
            self._waited += time.monotonic() - began
        self._count += count or 0
        if self._waited > PATIENCE + self._count / MIN_RATE:
            what = f"the server is too slow: {self._count:,} bytes in {self._waited:.0f} s"
            raise NetworkError(what, where=self._where, hint=LATER)
        if self.in_headers and self._count > _MAX_HEADERS:
            raise NetworkError("the server sends endless headers", where=self._where, hint=_OPERATOR)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


# --- failures


_CUT = {"RequestException", "HTTPError", "ConnectionError", "TimeoutError"}
"""Base classes of the exceptions for a transfer that was cut off."""
_NO_NAME = {"gaierror", "NameResolutionError", "LocationParseError"}
_MALFORMED = {"InvalidHeader", "InvalidURL", "InvalidSchema", "MissingSchema"}
_FAILURES = (
    (
        {"ProxyError", "InvalidProxyURL", "ProxySchemeUnknown"},
        "the proxy rejected the connection",
        "check HTTPS_PROXY, NO_PROXY and, for package indexes, pip's `proxy` option",
    ),
    (
        {"SSLCertVerificationError"},
        "the server's certificate cannot be verified",
        (
            "check the host name, and add its certificate authority: set SSL_CERT_FILE, for package indexes pip's `cert` option, "
            "or for registries put it into /etc/docker/certs.d/{host}/ca.crt"
        ),
    ),
    (
        {"SSLError"},
        "the TLS connection failed",
        "check whether that port serves https, and whether the server requires a client certificate",
    ),
    (_NO_NAME, "the host name cannot be resolved", "check the name and the network"),
    (
        {"ConnectionRefusedError", "NewConnectionError"},
        "the server cannot be reached",
        "check the address, the network, and whether the server runs",
    ),
    ({"Timeout", "TimeoutError"}, "the server did not answer in time", LATER),
    ({"RetryError", "ResponseError"}, "the server answered every request with an error", LATER),
    (_MALFORMED, "the address or a header of the request is malformed", "check the address and the credentials"),
    ({"OSError", "HTTPError", "BaseHTTPError"}, "the server broke off the connection", LATER),
)
"""Names of exceptions or of their base classes, what happened, and what to do. The first match counts."""


def network_error(error: BaseException, url: str) -> NetworkError:
    """Return the `NetworkError` for an exception that a request to `url` raised."""
    kinds = class_names(error)
    _, what, hint = next((failure for failure in _FAILURES if kinds & failure[0]), _FAILURES[-2])
    return NetworkError(what, where=redact.url(url), hint=hint.format(host=urllib.parse.urlsplit(url).netloc))


def is_temporary(error: BaseException) -> bool:
    """Whether another try may succeed after an error or its `NetworkError`. An invalid certificate, host name or URL stays."""
    return "OSError" in class_names(error) and may_recover(error)


def may_recover(error: BaseException) -> bool:
    """Whether the server may answer later, after an error that says nothing about the address."""
    return not class_names(error) & (_MALFORMED | _NO_NAME | {"SSLCertVerificationError", "FinalError"})


def is_silent(error: BaseException) -> bool:
    """Whether the server did not answer at all, so that each further try takes long."""
    return bool(class_names(error) & {"Timeout", "TimeoutError", "ConnectionRefusedError", "NewConnectionError", "ProxyError"})


def lacks_tls(error: BaseException) -> bool:
    """Whether an error of the first connection shows that the server does not use TLS."""
    kinds = class_names(error)
    if kinds & {"SSLCertVerificationError", "ConnectionRefusedError", "gaierror", "ConnectTimeout"}:
        return False
    return bool(kinds & {"SSLError", "ReadTimeout", "ConnectionResetError", "RemoteDisconnected", "ProtocolError"})


@contextlib.contextmanager
def _end_at_cut() -> Iterator[None]:
    """End the block without an error if a transfer is cut off."""
    try:
        yield
    except Exception as error:
        if not {kind.__name__ for kind in type(error).__mro__} & _CUT:
            raise


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes, and the exceptions that it wraps."""
    visited: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        inner = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
        pending += [cause for cause in inner if isinstance(cause, BaseException)]


def class_names(error: BaseException) -> set[str]:
    """Return the names of all classes of an exception and of its causes."""
    return {kind.__name__ for cause in chain(error) for kind in type(cause).__mro__}


def cut_error(where: str) -> NetworkError:
    """Return the error for a transfer that was cut off on every try."""
    return NetworkError("the server broke off every transfer before the end", where=where, hint=LATER)
