"""A real package index on 127.0.0.1, small and with faults on demand; and a proxy under which it has any host name.

As an index it is `index.url`: from this machine, so what it gives is never linkable. As a proxy it answers for
every host: with `PIP_PROXY=index.proxy`, `http://mirror-a.test/simple` is an index that counts as linkable.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import pytest

JSON = "application/vnd.pypi.simple.v1+json"


class Asked(NamedTuple):
    """One request that was answered."""

    host: str
    path: str
    range: str
    status: int


@dataclass
class Index:
    """Serves the wheels of a directory: `/simple/<name>/` and `/files/<file>`. Change its fields at any time."""

    directory: Path
    json: bool = False
    hashes: bool = True
    ranges: bool = True
    """Answer ranges at all."""
    tails: bool = True
    """Answer ranges that count from the end (`bytes=-100`)."""
    etags: bool = True
    yanked: bool = True
    """Every file is: what is installed is found all the same. pip takes such a file only by its exact version."""
    auth: tuple[str, str] | None = None
    """User and password that are wanted."""
    tls: tuple[str, str] | None = None
    """Certificate and key: then `url` is https, and it is no proxy."""
    down: set[str] = field(default_factory=set)
    """Host names that do not answer (the proxy says 502)."""
    retry_after: int = 0
    """Seconds to wait that answers with a status of `fail` ask for; none if 0."""
    advisories: dict[str, list[str]] | None = None
    """The vulnerabilities of `NAME/VERSION`, for an index with PyPI's JSON API."""
    asked: list[Asked] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    """Addresses that asked: one for each connection."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._faults: list[tuple[str, int | str]] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("_", (_Handler,), {"index": self}))
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Index:  # noqa: PYI034 - typing.Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def proxy(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """With user and password, where they are wanted."""
        user = f"{':'.join(self.auth)}@" if self.auth and self.tls else ""
        return f"{'https' if self.tls else 'http'}://{user}{self.proxy.removeprefix('http://')}/simple"

    def fail(self, ending: str, how: int | str, times: int = 1) -> None:
        """The next `times` answers for paths with this ending go wrong: a status, `cut` (half of the body), `reset` (of the connection, without
        an answer) or `wrong` (other bytes)."""
        self._faults += [(ending, how)] * times

    def heal(self) -> None:
        """No further answer goes wrong."""
        with self._lock:
            self._faults.clear()

    def fault(self, path: str) -> int | str | None:
        with self._lock:
            found = next((one for one in self._faults if path.endswith(one[0])), None)
            if found is None:
                return None
            self._faults.remove(found)
            return found[1]

    def paths(self) -> list[str]:
        return [one.path for one in self.asked]


@contextmanager
def configured(patch: pytest.MonkeyPatch, **options: str) -> Iterator[pytest.MonkeyPatch]:
    """pip configured by these options alone (`index_url=...`), as if no configuration file and no proxy were there.

    Set the same variables with what this returns: `patch` would put back their value of this block after the test.
    """
    import os

    with patch.context() as own:
        for name in list(os.environ):
            if name.startswith("PIP_") or name.upper().endswith("_PROXY"):
                own.delenv(name)
        own.setenv("PIP_CONFIG_FILE", os.devnull)
        own.setenv("PIP_NO_CACHE_DIR", "1")
        own.setenv("PIP_RETRIES", "1")
        for name, value in options.items():
            own.setenv(f"PIP_{name.upper()}", value)
        yield own


def through(index: Index, host: str, caches: Path) -> dict[str, str]:
    """pip configured for the index under a host name and for nothing else of this machine; caches that know nothing."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": f"http://{host}/simple",
        "PIP_TRUSTED_HOST": host,
        "PIP_PROXY": index.proxy,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "1",
        "PIP_CACHE_DIR": str(caches / "pip"),
        "UV_CACHE_DIR": str(caches / "uv"),
        "XDG_CACHE_HOME": str(caches),
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):  # a client may go when it likes
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    index: Index
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self.index.connections.add(self.client_address)
        parts = urlsplit(self.path)
        host = parts.hostname or "127.0.0.1"
        path = unquote(parts.path)
        fault = self.index.fault(path)
        if host in self.index.down:
            self._answer(host, path, 502, b"")
        elif isinstance(fault, int):
            self._answer(host, path, fault, b"", {"Retry-After": str(self.index.retry_after)} if self.index.retry_after else {})
        elif fault == "reset":
            self.index.asked.append(Asked(host, path, self.headers.get("Range", ""), 0))
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        elif self.index.auth and not self._known():
            self._answer(host, path, 401, b"", {"WWW-Authenticate": 'Basic realm="tests"'})
        elif match := re.fullmatch(r"/simple/([^/]+)/", path):
            self._page(host, path, match[1], cut=fault == "cut")
        elif (match := re.fullmatch(r"/pypi/([^/]+/[^/]+)/json", path)) and self.index.advisories is not None:
            found = [{"id": name, "withdrawn": None} for name in self.index.advisories.get(match[1], ())]
            info = {"name": match[1].partition("/")[0], "yanked": self.index.yanked, "yanked_reason": None}
            self._tagged(
                host,
                path,
                json.dumps({"info": info, "vulnerabilities": found}).encode(),
                {"Content-Type": "application/json"},
                cut=False,
            )
        elif match := re.fullmatch(r"/files/((?:(?:noarch|linux-64)/)?[^/]+)", path):
            self._file(host, path, self.index.directory / match[1], fault)
        else:
            self._answer(host, path, 404, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _known(self) -> bool:
        wanted = base64.b64encode(":".join(self.index.auth or ()).encode()).decode()
        return self.headers.get("Authorization", "") == f"Basic {wanted}"

    def _page(self, host: str, path: str, name: str, *, cut: bool) -> None:
        held = [*self.index.directory.glob("*.whl"), *self.index.directory.glob("*.tar.gz")]
        wheels = [one for one in sorted(held) if _normal(one.name.partition("-")[0]) == name]
        if not wheels:
            self._answer(host, path, 404, b"")
            return
        body, kind = (_json, JSON) if self.index.json else (_html, "text/html; charset=utf-8")
        self._tagged(host, path, body(wheels, name, self.index), {"Content-Type": kind}, cut=cut)

    def _file(self, host: str, path: str, file: Path, fault: str | None) -> None:
        if not file.is_file():
            self._answer(host, path, 404, b"")
            return
        data = file.read_bytes()
        if fault == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not asked or not self.index.ranges or (not asked[1] and not self.index.tails):
            self._tagged(host, path, data, {}, cut=fault == "cut")
            return
        first, last = (
            (int(asked[1]), int(asked[2] or len(data) - 1)) if asked[1] else (max(0, len(data) - int(asked[2])), len(data) - 1)
        )
        last = min(last, len(data) - 1)
        span = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self._answer(host, path, 206, data[first : last + 1], span, cut=fault == "cut")

    def _tagged(self, host: str, path: str, body: bytes, headers: dict[str, str], *, cut: bool) -> None:
        if not self.index.etags:
            self._answer(host, path, 200, body, headers, cut=cut)
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(host, path, 304, b"", {"ETag": tag})
        else:
            self._answer(host, path, 200, body, headers | {"ETag": tag}, cut=cut)

    def _answer(
        self, host: str, path: str, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        self.index.asked.append(Asked(host, path, self.headers.get("Range", ""), status))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _html(wheels: list[Path], name: str, index: Index) -> bytes:
    links = []
    yanked = ' data-yanked=""' if index.yanked else ""
    for one in wheels:
        fragment = f"#sha256={_digest(one)}" if index.hashes else ""
        links.append(
            f'<a data-requires-python="&gt;=3.8"\n  href="../../files/{html.escape(quote(one.name))}{fragment}"{yanked}>{one.name}</a><br>'
        )
    return f"<!DOCTYPE html><html><head><title>{name}</title></head><body>{''.join(links)}</body></html>".encode()


def _json(wheels: list[Path], name: str, index: Index) -> bytes:
    files = [
        {
            "filename": one.name,
            "url": f"/files/{quote(one.name)}",
            "hashes": {"sha256": _digest(one)} if index.hashes else {},
            "yanked": index.yanked,
        }
        for one in wheels
    ]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()
