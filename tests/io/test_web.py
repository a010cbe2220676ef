"""Requests to a server that may be slow, silent, or odd."""

from __future__ import annotations

import contextlib
import email.utils
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repro_env.io import pace, web
from repro_env.io.web import Answer
from repro_env.model.errors import NetworkError


@contextmanager
def server(*answers: Callable[[socket.socket], object]) -> Iterator[str]:
    """One that takes a connection for each of `answers` and reads the head of one request on it; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(100)

        def serve() -> None:
            for answer in answers:
                with listening.accept()[0] as connection:
                    connection.settimeout(100)
                    head = b""
                    while b"\r\n\r\n" not in head and (more := connection.recv(1 << 16)):
                        head += more
                    heads.append(head)
                    answer(connection)

        heads.clear()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        thread.join(100)


heads: list[bytes] = []
"""Of the requests that came to the latest server."""


def says(status: str, body: bytes = b"", *more: str) -> Callable[[socket.socket], object]:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *more, "", ""])
    return lambda connection: connection.sendall(head.encode() + body)


def get(url: str, authorization: str = "") -> None:
    with web.Web().send("GET", url, tries=1, authorization=authorization):
        pass


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_pauses_become_longer_and_are_those_that_are_asked_for(pauses: list[float]) -> None:
    then = email.utils.formatdate(time.time() + 30, usegmt=True)
    answers = [
        says("503 x"),
        says("429 x", b"", "Retry-After: 7"),
        says("502 x", b"", f"Retry-After: {then}"),
        says("200 x", b"there"),
    ]
    with server(*answers) as url, web.Web(pause=1.0).send("GET", url) as answer:
        assert (answer.status, answer.whole(100)) == (200, b"there")
    first, second, third = pauses
    assert 0.75 <= first <= 1.25
    assert second == 7
    assert 25 < third <= 30


def test_the_last_answer_is_given(pauses: list[float]) -> None:
    with server(*[says("503 x")] * web.TRIES) as url, web.Web().send("GET", url) as answer:
        assert answer.status == 503
    assert len(pauses) == web.TRIES - 1
    assert sum(pauses) < 20


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "READ", 0.1)
    gone = threading.Event()
    with server(lambda _: gone.wait(60)) as url:
        with pytest.raises(NetworkError, match="did not answer in time") as caught:
            get(url)
        gone.set()
    assert caught.value.where == url


HEAD = b"HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD], ids=["headers", "body"])
@pytest.mark.parametrize(
    "read", [lambda answer: answer.whole(100_000), lambda answer: list(answer.chunks())], ids=["whole", "chunks"]
)
def test_a_slow_server_is_abandoned(monkeypatch: pytest.MonkeyPatch, sent: bytes, read: Callable[[Answer], object]) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.2)
    gone = threading.Event()

    def slow(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            while not gone.wait(0.02):
                connection.sendall(b"x")

    with server(slow) as url:
        with pytest.raises(NetworkError, match="too slow") as caught, web.Web().send("GET", url) as answer:
            read(answer)
        gone.set()
    assert caught.value.where in url


def test_time_spent_by_the_reader_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.2)
    body = bytes(1 << 20)
    with server(says("200 x", body)) as url, web.Web().send("GET", url) as answer:
        taken = 0
        for chunk in answer.chunks():
            time.sleep(0.3)
            taken += len(chunk)
    assert taken == len(body)


def test_endless_headers_are_refused() -> None:
    def endless(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with server(endless) as url, pytest.raises(NetworkError, match="endless headers"):
        get(url)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 x\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    ],
)
def test_a_body_that_is_cut_is_none(sent: bytes) -> None:
    with server(lambda connection: connection.sendall(sent)) as url, web.Web().send("GET", url) as answer:
        assert answer.whole(100) is None


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
)
def test_what_is_no_http(sent: bytes, pauses: list[float]) -> None:
    with (
        server(lambda connection: connection.sendall(sent)) as url,
        pytest.raises(NetworkError, match="breaks the connection off"),
        web.Web().send("GET", url, tries=1),
    ):
        pass


def test_a_body_in_crumbs_some_of_them_empty() -> None:
    with server(says("200 x")) as url, web.Web().send("PUT", url, body=iter([b"a", b"", b"bc"])) as answer:
        assert answer.status == 200
    assert b"Transfer-Encoding: chunked" in heads[0]


def test_neither_netrc_nor_cookies_nor_more_than_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    asked = web.Web()
    with server(says("200 x", b"", "Set-Cookie: a=b; Path=/"), says("200 x")) as url:
        for _ in range(2):
            with asked.send("GET", url, authorization=""):
                pass
    assert b"Authorization" not in b"".join(heads)
    assert b"Cookie" not in b"".join(heads)
    assert b"Accept-Encoding: identity" in heads[0]
    assert b"User-Agent: repro-env/" in heads[0]


def test_credentials_stay_with_whom_they_are_for() -> None:
    with server(says("200 x", b"there")) as elsewhere:
        other = list(heads)
        with socket.create_server(("127.0.0.1", 0)) as first:

            def redirect() -> None:
                with first.accept()[0] as connection:
                    other.append(connection.recv(1 << 16))
                    says("307 x", b"", f"Location: {elsewhere}")(connection)

            thread = threading.Thread(target=redirect, daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{first.getsockname()[1]}/y"
            with web.Web().send("GET", url, authorization="Bearer a-secret") as answer:
                assert answer.whole(10) == b"there"
            thread.join(100)
    assert b"a-secret" in other[0]
    assert b"a-secret" not in heads[0]


def test_a_header_that_is_none_is_not_quoted(pauses: list[float]) -> None:
    with pytest.raises(NetworkError, match="malformed") as caught:
        get("http://127.0.0.1:1/x", authorization="Bearer a-secret\nX: y")
    assert "a-secret" not in f"{caught.value} {caught.value.hint}"
    assert not pauses


def test_a_forked_child_makes_connections_of_its_own() -> None:
    import pickle

    asked = web.Web()
    with server(says("200 x"), says("200 x")) as url:
        with asked.send("GET", url):
            pass
        sessions = asked._own.sessions
        child = os.fork()
        if not child:
            code = 1
            try:
                with asked.send("GET", url):
                    code = asked._own.sessions is sessions
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert asked._own.sessions is sessions
    assert isinstance(pickle.loads(pickle.dumps(asked)), web.Web)
