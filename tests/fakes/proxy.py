"""A real HTTP proxy (`CONNECT`), behind which hosts have the names that a test gives them."""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Proxy:
    """`hosts`: `name:port` -> port on 127.0.0.1. Who is not in it is not let through (403)."""

    hosts: Mapping[str, int]
    user: str = ""
    """`name:password` that is wanted."""
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), type("_", (_Handler,), {"proxy": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Proxy:  # noqa: PYI034 - typing.Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://{self.user}{'@' if self.user else ''}127.0.0.1:{self._server.server_address[1]}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_CONNECT(self) -> None:
        self.proxy.asked.append(self.path)
        self.close_connection = True
        wanted = "Basic " + base64.b64encode(self.proxy.user.encode()).decode()
        if self.proxy.user and self.headers.get("Proxy-Authorization") != wanted:
            self.send_error(407)
        elif self.path not in self.proxy.hosts:
            self.send_error(403)
        else:
            with socket.create_connection(("127.0.0.1", self.proxy.hosts[self.path]), 120) as there:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    _join(self.connection, there)


def _join(one: socket.socket, other: socket.socket) -> None:
    to = {one: other, other: one}
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(1 << 16)
            if not data:
                return
            to[ready].sendall(data)
