"""A server that answers as a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def server(*answers: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve a connection for each of `answers`, and read the head of one request on it. Yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(100)

        def serve() -> None:
            for answer in answers:
                with listener.accept()[0] as connection:
                    connection.settimeout(100)
                    head = b""
                    while b"\r\n\r\n" not in head and (chunk := connection.recv(1 << 16)):
                        head += chunk
                    request_heads.append(head)
                    answer(connection)

        request_heads.clear()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        thread.join(100)


request_heads: list[bytes] = []
"""Heads of the requests to the most recent server."""
