"""Bytes between a TCP port and a Unix socket that is there later than the port."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io.relay import relay


@contextlib.contextmanager
def relayed(name: str, directory: Path) -> Iterator[tuple[str, int]]:
    """Relay an address, which is the value, to the socket of this name in a directory."""
    control, other = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ("127.0.0.1", free.getsockname()[1])
    thread = threading.Thread(target=relay, args=({name: address}, control))
    thread.start()
    os.write(other, os.fsencode(directory) + b"\0")
    yield address
    os.close(other)
    thread.join(20)
    assert not thread.is_alive()


@contextlib.contextmanager
def server(file: Path) -> Iterator[socket.socket]:
    """A socket that listens at a path, which may be long."""
    handle = os.open(file.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{handle}/{file.name}")
        os.close(handle)
        listening.listen()
        yield listening


def test_bytes_reach_a_socket_that_is_there_later_and_come_back(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)  # longer than the path of a socket may be
    directory.mkdir()
    data = os.urandom(1 << 20)
    with relayed("echo-1", directory) as address, _connect(address) as client, server(directory / "echo-1") as listening:
        threading.Thread(target=client.sendall, args=(data,)).start()
        inside, _ = listening.accept()
        with inside:
            assert _read(inside, len(data)) == data
            inside.sendall(b"back")
            assert _read(client, 4) == b"back"
        assert client.recv(1) == b""


def test_a_symlink_to_a_socket_of_this_machine_is_not_followed(tmp_path: Path) -> None:
    directory = tmp_path / "inside"
    directory.mkdir()
    (directory / "kernel-1").symlink_to(tmp_path / "engine.sock")
    with server(tmp_path / "engine.sock") as engine, relayed("kernel-1", directory) as address, _connect(address) as client:
        assert client.recv(1) == b"", "the connection was not closed"
        engine.setblocking(False)
        with pytest.raises(BlockingIOError):
            engine.accept()


def test_a_port_in_use_is_an_error() -> None:
    control, other = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(OSError, match="in use"):
        relay({"kernel-1": ("127.0.0.1", used.getsockname()[1])}, control)
    os.close(other)


def _connect(address: tuple[str, int]) -> socket.socket:
    """Connect as soon as the port is there."""
    while (connection := socket.socket()).connect_ex(address):
        connection.close()
    return connection


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := connection.recv(1 << 16)):
        data += chunk
    return data
