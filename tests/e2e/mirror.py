"""A package index on this machine, reached as a proxy: so it has any number of host names, none of them loopback."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Mirror:
    """Serves a folder of wheels as `http://ANY-HOST/simple/`; `answers` replaces what a path gives."""

    def __init__(self, wheels: Path, port: int) -> None:
        self.wheels = wheels
        self.proxy = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        """Every URL, in order."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Last part of a path -> (status, body)."""

    def environ(self, host: str) -> dict[str, str]:
        """pip's configuration for this index under a host name, and nothing else of the machine's."""
        return {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"http://{host}/simple/",
            "PIP_TRUSTED_HOST": host,
            "PIP_PROXY": self.proxy,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "http_proxy": self.proxy,
            "no_proxy": "",
        }

    def respond(self, path: str) -> tuple[int, bytes, str]:
        """Status, body, content type."""
        last = path.rstrip("/").rpartition("/")[2]
        if last in self.answers:
            return (*self.answers[last], "application/octet-stream")
        if path.startswith("/files/") and (self.wheels / last).is_file():
            return 200, (self.wheels / last).read_bytes(), "application/octet-stream"
        if path.startswith("/simple/"):
            links = [
                f'<a href="/files/{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}">{wheel.name}</a>'
                for wheel in sorted(self.wheels.glob("*.whl"))
                if re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower() == last
            ]
            if links:
                return 200, f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode(), "text/html"
        return 404, b"no such thing", "text/plain"


@contextmanager
def serve(wheels: Path) -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            mirror.asked.append(self.path)
            status, body, kind = mirror.respond(urlsplit(self.path).path)
            start = 0
            part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            whole = len(body)
            if part and status == 200 and (part[1] or part[2]):
                start = int(part[1]) if part[1] else max(0, whole - int(part[2]))
                end = min(int(part[2]) + 1, whole) if part[1] and part[2] else whole
                body, status = body[start:end], 206
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{whole}")
            self.send_header("Content-Type", kind)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        mirror = Mirror(wheels, server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            thread.join()
