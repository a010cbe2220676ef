"""Hand the command of a launch over to `guest/init.py` in a container, through a socket in a directory that the container mounts.

So neither the engine nor the list of this machine's processes ever has the command's variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from repro_env.oci import paths
from repro_env.sandbox import session
from repro_env.sandbox.embedded import seccomp
from repro_env.sandbox.session import Connection, Result
from repro_env.sandbox.streams import Streams
from repro_env.schema.environment import values_of
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Launch

CONTROL = "/.repro-env/control"
"""Where the directory with the socket is in the container."""
SOCKET = "supervisor"
"""The name of the socket to which `init.py` connects."""
_PAUSE = 0.5
"""Seconds between two checks whether the container still runs, until `init.py` connects."""


def command(interpreter: str) -> list[str]:
    """The first command of a container: the image's `interpreter` runs `init.py`."""
    return [interpreter, *paths.ISOLATED, f"{paths.SEEDS}/guest/init.py", "start", f"{CONTROL}/{SOCKET}"]


@contextlib.contextmanager
def listen(directory: Path) -> Iterator[socket.socket]:
    """Listen on the socket in a directory."""
    with socket.socket(socket.AF_UNIX) as listener:
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{handle}/{SOCKET}")  # the path of the directory may be too long
        finally:
            os.close(handle)
        listener.listen()
        listener.settimeout(_PAUSE)
        yield listener


def attend(
    listener: socket.socket, launch: Launch, streams: Streams, failure: Callable[[], ReproEnvError | None], **more: object
) -> Result:
    """Wait until `init.py` connects, send the command, and attend to it until it ends.

    `failure`: the error for a container that has ended; None while it runs. `more`: what else `init.py` does before the command.
    """
    with session.queue_signals() as queue, _accept(listener, failure) as connection:
        _send(connection, launch, streams, more)
        return session.attend(connection, queue, streams, launch.limits)


def _accept(listener: socket.socket, failure: Callable[[], ReproEnvError | None]) -> Connection:
    """Wait until `init.py` connects, and accept no other connection."""
    while True:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            listener.close()
            return connection
        if (error := failure()) is not None:
            raise error


def _send(connection: Connection, launch: Launch, streams: Streams, more: Mapping[str, object]) -> None:
    """Send the command and its streams to `init.py`."""
    umask = os.umask(0o022)
    os.umask(umask)
    program = seccomp.program(os.uname().machine, root=launch.user.uid == 0) or b""
    values = {
        "argv": launch.argv,
        "env": values_of(launch.env),
        "cwd": launch.cwd,
        "umask": umask,
        "fixed_addresses": launch.fixed_addresses,
        "filter": program.hex(),
        "terminal": streams.controlling,
        **more,
    }
    data = json.dumps(values).encode("ascii")  # not msgspec, because an argument may have bytes that are not UTF-8
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], [streams.ends[stream] for stream in (0, 1, 2)])
    connection.sendall(data)
