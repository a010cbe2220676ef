"""Relay the connections to TCP ports of this machine to Unix sockets, byte for byte: the protocol of ZeroMQ is the same on both."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import stat
from collections.abc import Mapping
from typing import Any

Address = tuple[str, int]
"""A host and a port."""
_READ = 1 << 16
_PAUSE = 0.05
"""Seconds between two attempts to connect to a socket that is not there yet."""


def relay(addresses: Mapping[str, Address], control: int) -> str:
    """Listen at the addresses, by the name of their socket, until `control` is closed, from which the directory of the sockets is read.

    Returns that directory; empty if none came. Its path ends with a zero byte. Connections wait until the sockets are there.
    Raises `OSError` if an address is in use.
    """
    return asyncio.run(_relay(addresses, control))


async def _relay(addresses: Mapping[str, Address], control: int) -> str:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    pipe = open(control, "rb", buffering=0)  # noqa: SIM115 - the transport closes it
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    with contextlib.ExitStack() as stack:
        stack.callback(transport.close)
        directory: asyncio.Future[int] = loop.create_future()
        connections: list[asyncio.Task[None]] = []

        def connect(name: str, *ends: Any) -> None:
            connections.append(loop.create_task(_connect(directory, name, *ends)))

        for name, address in addresses.items():
            server = await asyncio.start_server(functools.partial(connect, name), *address)
            stack.callback(server.close)
        with contextlib.suppress(asyncio.IncompleteReadError):  # the command could not be started
            path = os.fsdecode((await reader.readuntil(b"\0"))[:-1])
            handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            stack.callback(lambda: [task.cancel() for task in connections])  # before the descriptor is closed
            directory.set_result(handle)
            await reader.read()
            return path
    return ""


async def _connect(directory: asyncio.Future[int], name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy between a connection and a new one to the socket, until one of them ends."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.callback(writer.close)
        found = await _open(await asyncio.shield(directory), name)
        if found is None:
            return
        far_reader, far_writer = found
        stack.callback(far_writer.close)
        copies = [asyncio.ensure_future(_copy(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)


async def _open(directory: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Connect to a socket as soon as it is there. None for anything else: a symlink could lead to a socket of this machine.

    Through a descriptor the path is short: that of a socket has at most 107 bytes.
    """
    while True:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                if not stat.S_ISSOCK(os.fstat(handle).st_mode):
                    return None
                return await asyncio.open_unix_connection(f"/proc/self/fd/{handle}")
            finally:
                os.close(handle)
        await asyncio.sleep(_PAUSE)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()
