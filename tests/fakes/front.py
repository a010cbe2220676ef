"""A server before a real registry: faults on demand, bearer tokens, and the referrers API that Debian's registry lacks."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

PIECE = 1 << 16
INDEX = "application/vnd.oci.image.index.v1+json"


class Asked(NamedTuple):
    """One request that came."""

    method: str
    path: str
    status: int
    authorization: str
    range: str
    """The header, of the request."""


class Fault(NamedTuple):
    """What goes wrong with one answer."""

    method: str
    path: str
    """A pattern that is searched in the path."""
    kind: str
    """`status`: `value` instead of an answer. `cut`: the first `value` bytes of the body (or of what is sent), then the
    connection ends. `wrong`: another byte at `value`. `endless`: a body without length or end. `longer`: `value` bytes
    more than there are. `lie`: `Docker-Content-Digest: value`. `redirect`: to `value`. `drop`: done, but not answered.
    `body`: `value` instead of the body, with the headers. `location`: `Location: value`. `norange`: ranges are not heard. `revoke`: no token is good any more.
    `instead`: `value` is kept instead of what was sent. `page`: the headers `value` more on a list of the API. `refuse`: `value` as body of a 403, or of the status in `headers`.
    """
    value: Any
    headers: Mapping[str, str]


@dataclass
class Front:
    """In front of the registry `behind` (`host:port`), at `front.host`. Change its fields at any time."""

    behind: str
    tls: tuple[str, str] | None = None
    """Certificate and key: then it speaks https."""
    client_authority: str = ""
    """Whose certificates it wants to be shown."""
    token: bool = False
    """Whether bearer tokens are wanted; `/token` gives them."""
    realm: str = ""
    """Where tokens are asked for, where that is not here."""
    user: tuple[str, str] = ("", "")
    """Who gets a token, where that is not everybody; with a name of `<token>`: the identity token that is exchanged."""
    readers: bool = False
    """Everybody else gets tokens for pulling."""
    uses: int = 1000
    """How often a token is good."""
    expires: object = 300
    """What a token says of its life, in seconds."""
    referrers: bool = False
    page: int = 100
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._faults: list[Fault] = []
        self.tokens: dict[str, tuple[str, int]] = {}
        """Token -> (its scope, uses left)."""
        self.hangers: dict[str, list[dict[str, Any]]] = {}
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("_", (_Handler,), {"front": self}))
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            if self.client_authority:
                context.load_verify_locations(self.client_authority)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Front:  # noqa: PYI034 - typing.Self came with Python 3.11
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fail(
        self, method: str, path: str, kind: str, value: Any = 0, *, times: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        """The next `times` requests with this method and path go wrong (see `Fault`)."""
        self._faults += [Fault(method, path, kind, value, headers or {})] * times

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            found = next((one for one in self._faults if one.method == method and re.search(one.path, path)), None)
            if found is not None:
                self._faults.remove(found)
            return found

    def count(self, method: str, path: str = "") -> int:
        return sum(one.method == method and re.search(path, one.path) is not None for one in self.asked)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client may go when it likes; some try TLS first
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    front: Front
    protocol_version = "HTTP/1.1"
    timeout = 200
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def send_error(self, *args: Any, **more: Any) -> None:
        self.close_connection = True
        self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    def handle_any(self) -> None:
        fault = self.front.fault(self.command, self.path)
        path = urlsplit(self.path).path
        if fault is not None and fault.kind == "revoke":
            self.front.tokens = dict.fromkeys(self.front.tokens, ("", 0))
        if fault is not None and fault.kind == "status":
            self._read_body()
            self._answer(int(fault.value), b"", fault.headers)
        elif fault is not None and fault.kind == "refuse":
            self._read_body()
            self._answer(int(fault.headers.get("status", "403")), fault.value, {})
        elif fault is not None and fault.kind == "redirect":
            self._answer(307, b"", {"Location": fault.value})
        elif path == "/token":
            self._give_token()
        elif self.front.token and not self._may():
            self._read_body()
            realm = self.front.realm or f"{'https' if self.front.tls else 'http'}://{self.front.host}/token"
            wanted = f'Bearer realm="{realm}",service="tests",scope="{self._scope()}"'
            self._answer(
                401, b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}', {"WWW-Authenticate": wanted}
            )
        elif self.front.referrers and (match := re.fullmatch(r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})", path)):
            self._list(match[1], match[2], fault.value if fault else {})
        else:
            self._forward(fault)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)

    def _forward(self, fault: Fault | None) -> None:
        kind = fault.kind if fault else ""
        value: Any = fault.value if fault else 0
        upload = self.command in ("PUT", "PATCH")
        body = self._read_body(value if upload and kind == "cut" else -1)
        if kind == "instead":
            body = value
        if upload and kind == "wrong":
            body = body[:value] + bytes([body[value] ^ 1]) + body[value + 1 :]
        asked = {
            name: text
            for name, text in self.headers.items()
            if name.lower() not in ("host", "transfer-encoding", "content-length")
        }
        if self.front.token:
            asked.pop("Authorization", None)
        there = http.client.HTTPConnection(self.front.behind, timeout=200)
        try:
            there.request(self.command, self.path, body=body, headers=asked | {"Host": self.headers["Host"]})
            answer = there.getresponse()
            data = answer.read()
        finally:
            there.close()
        headers = {
            name: text
            for name, text in answer.getheaders()
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date")
        }
        if self.front.tls and headers.get("Location", "").startswith("http://"):
            headers["Location"] = "https://" + headers["Location"].removeprefix("http://")
        if kind == "drop" or (upload and kind == "cut"):
            self.front.asked.append(self._asked(0))
            self.close_connection = True
            return
        if kind == "instead":
            headers.pop("Docker-Content-Digest", None)
        if kind == "lie":
            headers["Docker-Content-Digest"] = value
        if kind == "location":
            headers["Location"] = value
        if self.front.referrers and answer.status == 201 and (subject := self._subject(body)):
            headers["OCI-Subject"] = subject
        if fault is not None and kind == "body":
            data = value
            headers |= dict(fault.headers)
        if kind == "wrong" and not upload:
            data = data[:value] + bytes([data[value] ^ 1]) + data[value + 1 :]
        if kind == "longer":
            data += bytes(value)
        length = (
            None
            if kind in ("endless", "longer")
            else int(answer.headers.get("Content-Length") or len(data))
            if self.command == "HEAD"
            else len(data)
        )
        self._answer(answer.status, data, headers, length=length, cut=value if kind == "cut" else -1, endless=kind == "endless")

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        *,
        length: int | None = -1,
        cut: int = -1,
        endless: bool = False,
    ) -> None:
        self.front.asked.append(self._asked(status))
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if length is None:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body) if length < 0 else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut < 0 else body[:cut])
        if cut >= 0:
            self.close_connection = True
        while endless:
            self.wfile.write(bytes(PIECE))

    def _asked(self, status: int) -> Asked:
        return Asked(self.command, self.path, status, self.headers.get("Authorization", ""), self.headers.get("Range", ""))

    def _read_body(self, most: int = -1) -> bytes:
        """What is sent, at most `most` bytes of it."""
        found = bytearray()
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            while size := int(self.rfile.readline().strip() or b"0", 16):
                found += self.rfile.read(size)
                self.rfile.readline()
                if 0 <= most <= len(found):
                    return bytes(found[:most])
            self.rfile.readline()
        else:
            length = int(self.headers.get("Content-Length") or 0)
            found += self.rfile.read(length if most < 0 else min(most, length))
        return bytes(found)

    def _scope(self) -> str:
        match = re.match(r"/v2/(.+?)/(?:blobs|manifests|referrers)/", self.path)
        actions = "pull" if self.command in ("GET", "HEAD") else "pull,push"
        return f"repository:{match[1]}:{actions}" if match else ""

    def _may(self) -> bool:
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        with self.front.lock:
            scope, left = self.front.tokens.get(value, ("", 0))
            if scheme != "Bearer" or not left:
                return False
            self.front.tokens[value] = (scope, left - 1)
        wanted, _, actions = self._scope().rpartition(":")
        for one in scope.split():
            resource, _, allowed = one.rpartition(":")
            if resource == wanted and set(actions.split(",")) <= set(allowed.split(",")):
                return True
        return not wanted

    def _give_token(self) -> None:
        name, password = self.front.user
        if self.command == "POST":
            form = dict(parse_qsl(self._read_body().decode()))
            good = name == "<token>" and form.get("refresh_token") == password and form.get("grant_type") == "refresh_token"
            scope = form.get("scope", "")
        else:
            given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            good = not name or given == f"{name}:{password}"
            scope = " ".join(parse_qs(urlsplit(self.path).query).get("scope", []))
        if not good and self.front.readers and not self.headers.get("Authorization"):
            good, scope = True, re.sub(r":pull,push\b", ":pull", scope)
        if not good:
            self._answer(401, b'{"details":"incorrect username or password"}', {})
            return
        with self.front.lock:
            token = "t" + sha256(f"{len(self.front.tokens)} {scope}".encode()).hexdigest()
            self.front.tokens[token] = (scope, self.front.uses)
        self._answer(
            200, json.dumps({"token": token, "expires_in": self.front.expires}).encode(), {"Content-Type": "application/json"}
        )

    def _subject(self, body: bytes) -> str:
        document = json.loads(body) if "/manifests/" in self.path else {}
        subject: str = (document.get("subject") or {}).get("digest", "")
        if subject:
            entry = {
                "mediaType": document["mediaType"],
                "digest": "sha256:" + sha256(body).hexdigest(),
                "size": len(body),
                "artifactType": document.get("artifactType", ""),
            }
            there = self.front.hangers.setdefault(subject, [])
            if entry not in there:
                there.append(entry)
        return subject

    def _list(self, repository: str, digest: str, more: Mapping[str, str]) -> None:
        query = parse_qs(urlsplit(self.path).query)
        start = int(query.get("start", ["0"])[0])
        there = self.front.hangers.get(digest, [])
        headers = {"Content-Type": INDEX}
        if start + self.front.page < len(there):
            headers["Link"] = f'</v2/{repository}/referrers/{digest}?start={start + self.front.page}>; rel="next"'
        page = {"schemaVersion": 2, "mediaType": INDEX, "manifests": there[start : start + self.front.page]}
        self._answer(200, json.dumps(page).encode(), headers | dict(more))
