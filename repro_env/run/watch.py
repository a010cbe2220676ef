"""Containers do not outlive their run: a watcher beside it, and the next run where that was killed too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.model.errors import EngineError, ReproEnvError
from repro_env.run import container, scratch


@contextlib.contextmanager
def watched(address: str, name: str, folders: Sequence[Path]) -> Iterator[None]:
    """Whatever becomes of this process inside the block: the container of this name does not outlive it, nor do its folders."""
    read, write = os.pipe2(os.O_CLOEXEC)
    watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            nothing = os.open(os.devnull, os.O_RDWR)
            for handle in [int(item.name) for item in Path("/proc/self/fd").iterdir()]:
                if handle not in (read, nothing):
                    with contextlib.suppress(OSError):
                        os.dup2(nothing, handle) if handle < 3 else os.close(handle)
            if not os.read(read, 1):  # nobody said that it is well
                with contextlib.suppress(EngineError), engines.opened(address) as engine:
                    remove(engine, name)
                for folder in folders:
                    scratch.clear(folder)
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
    """Remove a container, running or not; none is well too."""
    with contextlib.suppress(EngineError), engine.talk("remove the container"):
        engine.client.api.remove_container(name, v=True, force=True)


def clear(engine: Engine) -> None:
    """Remove containers whose run is over without having removed them: nobody holds their scratch folder."""
    with engine.talk("list its containers"):
        found = engine.client.api.containers(all=True, filters={"label": container.LABEL})
    for one in found:
        labels: dict[str, str] = one.get("Labels") or {}
        path = labels.get(container.LABEL, "")
        if path and is_over(path, seen=labels.get(container.ORIGIN) == origin()):
            remove(engine, one["Id"])


def origin() -> str:
    """Which boot and which mounts this process sees folders by."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/mnt').st_ino}"  # noqa: PTH116


def is_over(path: str, *, seen: bool) -> bool:
    """`seen`: the folder is gone when it is not there; else it may be somewhere that this process does not see."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return seen
    except OSError:
        return False  # somebody else's
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
