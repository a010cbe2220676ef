"""Requests to servers that are slow, silent or wrong."""

from __future__ import annotations

import contextlib
import email.utils
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repro_env.io import http, registryhttp
from repro_env.io.http import Answer
from repro_env.schema.errors import NetworkError
from tests.io.servers import request_heads, server


def respond(status: str, body: bytes = b"", *headers: str) -> Callable[[socket.socket], object]:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""])
    return lambda connection: connection.sendall(head.encode() + body)


def get(url: str, authorization: str = "") -> None:
    with registryhttp.Web().send("GET", url, tries=1, authorization=authorization):
        pass


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace `time.sleep` in this thread, and return the list of requested seconds. Threads of other tests may go on sleeping."""
    found: list[float] = []
    sleep, thread = time.sleep, threading.get_ident()

    def pause(seconds: float) -> None:
        if threading.get_ident() == thread:
            found.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    return found


def test_pauses_follow_retry_after_and_become_longer(pauses: list[float]) -> None:
    then = int(time.time()) + 30
    answers = [
        respond("503 x"),
        respond("429 x", b"", "Retry-After: 7"),
        respond("502 x", b"", f"Retry-After: {email.utils.formatdate(then, usegmt=True)}"),
        respond("200 x", b"there"),
    ]
    with server(*answers) as url, registryhttp.Web(pause=1.0).send("GET", url) as answer:
        assert (answer.status, answer.read(100)) == (200, b"there")
    first, second, third = pauses
    assert 0.75 <= first <= 1.25
    assert second == 7
    assert then - time.time() <= third <= 30


def test_the_answer_to_the_last_try_is_returned(pauses: list[float]) -> None:
    with server(*[respond("503 x")] * http.TRIES) as url, registryhttp.Web().send("GET", url) as answer:
        assert answer.status == 503
    assert len(pauses) == http.TRIES - 1
    assert sum(pauses) < 20


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registryhttp, "READ", 0.1)
    gone = threading.Event()
    with server(lambda _: gone.wait(60)) as url:
        with pytest.raises(NetworkError, match="did not answer in time") as caught:
            get(url)
        gone.set()
    assert caught.value.where == url


HEAD = b"HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD], ids=["headers", "body"])
@pytest.mark.parametrize(
    "read", [lambda answer: answer.read(100_000), lambda answer: list(answer.chunks())], ids=["read", "chunks"]
)
def test_a_transfer_that_is_too_slow_is_an_error(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, read: Callable[[Answer], object]
) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    gone = threading.Event()

    def slow(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            while not gone.wait(0.02):
                connection.sendall(b"x")

    with server(slow) as url:
        with pytest.raises(NetworkError, match="too slow") as caught, registryhttp.Web().send("GET", url) as answer:
            read(answer)
        gone.set()
    assert caught.value.where in url


def test_the_time_to_process_the_bytes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    body = bytes(1 << 20)
    with server(respond("200 x", body)) as url, registryhttp.Web().send("GET", url) as answer:
        size = 0
        for chunk in answer.chunks():
            time.sleep(0.3)
            size += len(chunk)
    assert size == len(body)


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
def test_a_body_that_was_cut_off_is_none(sent: bytes) -> None:
    with server(lambda connection: connection.sendall(sent)) as url, registryhttp.Web().send("GET", url) as answer:
        assert answer.read(100) is None


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 x\r\n" + b"a: b\r\n" * 200 + b"\r\n"]
)
def test_an_invalid_response_is_an_error(sent: bytes, pauses: list[float]) -> None:
    with (
        server(lambda connection: connection.sendall(sent)) as url,
        pytest.raises(NetworkError, match="broke off the connection"),
        registryhttp.Web().send("GET", url, tries=1),
    ):
        pass


def test_empty_chunks_of_a_body_are_skipped() -> None:
    with (
        server(respond("200 x")) as url,
        registryhttp.Web().send("PUT", url, body=registryhttp.Source([b"a", b"", b"bc"])) as answer,
    ):
        assert answer.status == 200
    assert b"Transfer-Encoding: chunked" in request_heads[0]


def test_the_answer_of_a_server_that_refuses_an_upload_is_not_lost() -> None:
    """The server answers after the head of the request and closes the connection, while the body is still being sent."""
    closed = threading.Event()

    def refuse(connection: socket.socket) -> None:
        respond("413 x")(connection)
        connection.close()
        closed.set()

    def body() -> Iterator[bytes]:
        yield b"a"
        closed.wait(60)
        yield b"b"
        yield b"c"

    with server(refuse) as url, registryhttp.Web().send("PUT", url, body=registryhttp.Source(body())) as answer:
        assert answer.status == 413


def test_netrc_and_cookies_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    client = registryhttp.Web()
    with server(respond("200 x", b"", "Set-Cookie: a=b; Path=/"), respond("200 x")) as url:
        for _ in range(2):
            with client.send("GET", url, authorization=""):
                pass
    assert b"Authorization" not in b"".join(request_heads)
    assert b"Cookie" not in b"".join(request_heads)
    assert b"Accept-Encoding: identity" in request_heads[0]
    assert b"User-Agent: repro-env/" in request_heads[0]


def test_credentials_are_not_sent_to_another_server() -> None:
    with server(respond("200 x", b"there")) as target:
        first_heads = list(request_heads)
        with socket.create_server(("127.0.0.1", 0)) as first:

            def redirect() -> None:
                with first.accept()[0] as connection:
                    first_heads.append(connection.recv(1 << 16))
                    respond("307 x", b"", f"Location: {target}")(connection)

            thread = threading.Thread(target=redirect, daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{first.getsockname()[1]}/y"
            with registryhttp.Web().send("GET", url, authorization="Bearer a-secret") as answer:
                assert answer.read(10) == b"there"
            thread.join(100)
    assert b"a-secret" in first_heads[0]
    assert b"a-secret" not in request_heads[0]


def test_an_invalid_header_is_not_shown_in_the_error(pauses: list[float]) -> None:
    with pytest.raises(NetworkError, match="malformed") as caught:
        get("http://127.0.0.1:1/x", authorization="Bearer a-secret\nX: y")
    assert "a-secret" not in f"{caught.value} {caught.value.hint}"
    assert not pauses


class Closable:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_each_thread_has_its_own_session_and_all_are_closed() -> None:
    sessions = http.Sessions(lambda _: Closable())
    own = sessions.get("x")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(sessions.get, "x").result()
    assert sessions.get("x") is own is not other
    sessions.close()
    assert own.closed
    assert other.closed
