"""Bytes of the run's seed in place of the system's randomness, for ids and names (`exec --ids seeded`).

A stream is sha256(master, interpreter, worker, "ids", ordinal). Two processes must not draw the same id, so interpreters that
a run starts differ as well: each is named by the one that started it, its command line, its rank, and its number among those
with the same of all these. A child of multiprocessing belongs to the interpreter of its parent, and its number as a worker
tells it apart, whatever the start method. `REPRO_ENV_IDS` holds the name of the interpreter for those that it starts.
"""

from __future__ import annotations

import itertools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
streams: Any = seeds.part("streams")

_VARIABLE = "REPRO_ENV_IDS"
_HELPERS = ("multiprocessing.", "popen_loky")
"""Parts of the command lines of interpreters that multiprocessing and loky start for their workers."""


class _State:
    interpreter = ""
    of_parent = ""
    """The name for a process of multiprocessing, once it knows its number."""
    is_helper = False
    worker: tuple[Any, ...] = ()
    ordinals = itertools.count()
    """Of the draws of `worker`. A worker never comes back after another one."""


def start() -> None:
    """Name this interpreter."""
    parent = os.environ.get(_VARIABLE, "")
    try:
        with open("/proc/self/cmdline", "rb") as file:
            command = file.read(1 << 16).decode("ascii", "backslashreplace")
    except OSError:
        command = ""
    group = _digest(parent, command, streams.own_rank()).hex()[:32]
    _State.interpreter = _digest(group, str(_number(group))).hex()[:32]
    _State.is_helper = any(part in command for part in _HELPERS)
    _State.of_parent = parent if _State.is_helper else _State.interpreter
    os.environ[_VARIABLE] = _State.interpreter


def _number(group: str) -> int:
    """How many interpreters of this group there were before. They append a byte each to a file beside the notes."""
    if not seeds._NOTES:
        return 0
    fd = os.open(f"{os.path.dirname(seeds._NOTES)}/ids-{group}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"\n")
        return os.lseek(fd, 0, os.SEEK_CUR) - 1
    finally:
        os.close(fd)


def restart() -> None:
    """Be a forked child, or a process of multiprocessing, which was a forked child until now or an interpreter of its own."""
    worker = seeds._State.worker
    if worker[-2:-1] == ("fork",):
        if not _State.is_helper:
            _State.of_parent = _State.interpreter
        _State.interpreter = _digest(_State.interpreter, repr(worker)).hex()[:32]
    else:
        _State.interpreter, _State.is_helper = _State.of_parent, False
    os.environ[_VARIABLE] = _State.interpreter


def draw(size: int) -> bytes:
    """The next bytes of this process."""
    worker = seeds._State.worker
    if worker != _State.worker:
        _State.worker, _State.ordinals = worker, itertools.count()
    ordinal = str(next(_State.ordinals))
    blocks = (_digest(_State.interpreter, repr(worker), ordinal, str(block)) for block in range((size + 31) // 32))
    return b"".join(blocks)[:size]


def _digest(*words: str) -> bytes:
    digest: bytes = streams._sha256("\0".join(("repro-env/ids/1", seeds._MASTER, *words)).encode())
    return digest
