"""Remove containers whose run was killed: by a watcher process, or in the next run if the watcher was killed too."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.sandbox import scratch
from repro_env.sandbox.docker import container
from repro_env.sandbox.embedded.firstprocess import close_all_but
from repro_env.schema.errors import EngineError, ReproEnvError


@contextlib.contextmanager
def watch_container(address: str, name: str, directories: Sequence[Path]) -> Iterator[None]:
    """Start a process that removes the container and the scratch directories if this process dies inside the block."""
    read, write = os.pipe2(os.O_CLOEXEC)
    watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            close_all_but({read})
            if not os.read(read, 1):  # the pipe was closed without a message, so the watched process died
                with contextlib.suppress(EngineError), engines.connect(address) as engine:
                    remove(engine, name)
                for directory in directories:
                    scratch.remove_stale(directory)
        finally:
            os._exit(0)
    os.close(read)
    try:
        yield
        os.write(write, b".")
    except ReproEnvError:
        os.write(write, b".")
        raise
    finally:
        os.close(write)
        os.waitpid(watcher, 0)


def remove(engine: Engine, name: str) -> None:
    """Remove a container, even if it runs. Does nothing if it does not exist."""
    with contextlib.suppress(EngineError), engine.talk("remove the container"):
        engine.client.api.remove_container(name, v=True, force=True)


def remove_stale(engine: Engine) -> None:
    """Remove the containers of runs that are over, whose scratch directories are unlocked."""
    with engine.talk("list its containers"):
        listed = engine.client.api.containers(all=True, filters={"label": container.LABEL})
    for entry in listed:
        labels: dict[str, str] = entry.get("Labels") or {}
        path = labels.get(container.LABEL, "")
        if path and is_over(path, is_local=labels.get(container.ORIGIN) == origin()):
            remove(engine, entry["Id"])


def origin() -> str:
    """The boot and the mount namespace of this process, in which its paths are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/mnt').st_ino}"  # noqa: PTH116


def is_over(path: str, *, is_local: bool) -> bool:
    """Whether the run with this scratch directory is over.

    `is_local`: whether `origin` is the same as that of the run. If it is not, a missing directory proves nothing.
    """
    try:
        with scratch.lock(Path(path)):
            return True
    except FileNotFoundError:
        return is_local
    except OSError:  # it is locked, or belongs to another user
        return False
