"""An index that may send anything: it costs a bounded time and memory, reaches no file, and is named."""

from __future__ import annotations

import gzip
import io
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.hostile.ground import Ground

Answer = Callable[[BaseHTTPRequestHandler], None]
WHEEL = "plain-1.0-py3-none-any.whl"


INFLATING = gzip.compress(b"\0" * (32 << 20)) * 32
"""A megabyte that becomes a gigabyte."""


class Server:
    """Answers `/simple/plain/` and `/files/` as it is told."""

    def __init__(self) -> None:
        self.page: Answer = listing
        self.file: Answer = missing
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def do_GET(self) -> None:
                try:
                    if self.path.startswith("/simple/plain"):
                        outer.page(self)
                    elif self.path.startswith("/files/"):
                        outer.file(self)
                    else:
                        missing(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, kind: str = "text/html", **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def listing(handler: BaseHTTPRequestHandler) -> None:
    send(handler, f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode())


def missing(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 404)


def endless_page(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    while True:
        handler.wfile.write(b"<a href='x-1.0-py3-none-any.whl'>x</a>\n" * 25_000)


def announced_gigabyte(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(1 << 30))
    handler.end_headers()
    for _ in range(1 << 10):
        handler.wfile.write(b"x" * (1 << 20))


def inflating_page(handler: BaseHTTPRequestHandler) -> None:
    send(handler, INFLATING, Content_Encoding="gzip")


def nested_page(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b'{"files":' + b"[" * 3_000_000, kind="application/vnd.pypi.simple.v1+json")


def page_of_a_million_links(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"".join(b'<a href="/files/plain-1.0-py3-none-any.whl?%d">x</a>\n' % number for number in range(100_000)))


def to_a_file(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 302, Location="file:///etc/passwd")


def round_and_round(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 302, Location=handler.path)


def page_of_files(handler: BaseHTTPRequestHandler) -> None:
    send(
        handler,
        b'<base href="file:///"><a href="file:///etc/plain-1.0-py3-none-any.whl">x</a><a href="/../../plain-1.0-py3-none-any.whl">y</a>',
    )


PAGES: dict[str, tuple[Answer, int | None, str]] = {
    "endless": (endless_page, 10, "the answer is larger than"),
    "a gigabyte": (announced_gigabyte, 10, "the answer is larger than"),
    "a gigabyte when inflated": (inflating_page, 10, "the answer is larger than"),
    "nested": (nested_page, 9, "is not an index page"),
    "a redirect to a file": (to_a_file, 10, "/simple/plain/"),
    "a redirect without end": (round_and_round, 10, "/simple/plain/"),
    "a base and links of file:": (page_of_files, 0, "plain"),
    "the same link over and over": (page_of_a_million_links, None, "plain"),
}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile-index-store") / "store"


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory, store: Path) -> list[Path]:
    first = Ground(tmp_path_factory.mktemp("hostile-index-first") / "ground", store)
    ended = first.capture()
    assert ended.code == 0, ended.output
    assert not first.carries(b"canary-7c1e9a")
    return parts.large_blobs(first.project)


@pytest.fixture
def ground(tmp_path: Path, store: Path, blobs: list[Path], server: Server) -> Ground:
    made = Ground(tmp_path / "ground", store)
    parts.copy_blobs(blobs, made.project, store)
    made.laid = tuple(blobs)
    made.env = {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": f"{server.url}/simple",
        "PIP_TIMEOUT": "5",
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
    }
    return made


@pytest.mark.parametrize("name", PAGES)
def test_hostile_pages_are_refused_or_ignored(ground: Ground, server: Server, name: str) -> None:
    server.page, code, named = PAGES[name]
    ended = ground.capture()
    assert code is None or ended.code == code, ended.output
    assert named in ground.messages(ended)
    assert ended.seconds < 120


# -- wheels -------------------------------------------------------------------------------------------------------


def wheel(record: bytes = b"plain.py,,\n", *, zeros: str = "", size: int = 0, more: int = 0) -> bytes:
    """`zeros` is the member that inflates to `size` bytes; written in parts, since a child counts its parent's peak as its own."""
    content = {
        "plain.py": b"NAME = 'plain'\n",
        "plain-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: plain\nVersion: 1.0\n",
        "plain-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
        "plain-1.0.dist-info/RECORD": record,
        **{f"f{number}": b"" for number in range(more)},
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            if name.endswith(zeros) and zeros:
                with archive.open(name, "w") as member:
                    for _ in range(size >> 20):
                        member.write(b"\0" * (1 << 20))
            else:
                archive.writestr(name, data)
    return out.getvalue()


def climbing() -> bytes:
    out = io.BytesIO(wheel())
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("../../../canary/private.txt", b"overwritten")
        archive.writestr("/etc/evil", b"overwritten")
    return out.getvalue()


def lying() -> bytes:
    """Its directory says that RECORD has three bytes; what comes out is far more."""
    data = wheel(zeros="RECORD", size=1 << 28)
    return data.replace((1 << 28).to_bytes(4, "little"), (3).to_bytes(4, "little"))


WHEELS: dict[str, Callable[[], bytes]] = {
    "RECORD inflates to 256 MB": lambda: wheel(zeros="RECORD", size=1 << 28),
    "WHEEL inflates to 256 MB": lambda: wheel(zeros="WHEEL", size=1 << 28),
    "a member inflates to 1 GB": lambda: wheel(zeros="plain.py", size=1 << 30),
    "100 000 members": lambda: wheel(more=100_000),
    "members that climb": climbing,
    "sizes that lie": lying,
    "no zip": lambda: b"PK\x05\x06" + b"\0" * 18 + b"x" * 100,
    "nothing": lambda: b"",
}


LONG_COUNT = ("WHEEL inflates to 256 MB", "a member inflates to 1 GB", "100 000 members")
"""Wheels that only `make soak` tries."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] if name in LONG_COUNT else []) for name in WHEELS])
def test_wheels_that_differ_from_the_installed_one_are_not_used(ground: Ground, server: Server, name: str) -> None:
    """None of them is what is installed, so the distribution is bundled, and says why."""
    data = WHEELS[name]()
    server.file = lambda handler: send(handler, data, kind="application/octet-stream")
    ended = ground.capture()
    assert ended.code == 0, ended.output
    bundled = ground.facts()["observed"]["bundled"]
    assert any(bundled["name"] == "plain" and bundled["why"] for bundled in bundled), bundled
    assert ended.seconds < 120


@pytest.mark.soak  # five minutes of waiting
def test_a_server_that_sends_too_slowly_is_given_up(ground: Ground, server: Server) -> None:
    """A byte now and then keeps every time limit of a single read; the page as a whole has one too."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(1)

    server.page = drip
    ended = ground.capture(timeout=600)
    assert ended.code == 10
    assert "too slow" in ended.output
