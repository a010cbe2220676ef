"""Draw ids and names from the seed of the run instead of from the operating system (`exec --ids seeded`).

A draw is sha256(master seed, interpreter, worker, ordinal). Two processes must not draw the same id, so each interpreter
has a name: a digest of its parent interpreter, command line, rank, and number among interpreters with the same three. A child
of multiprocessing uses the interpreter of its parent and its own worker number, for every start method. `REPRO_ENV_IDS` passes
the name of an interpreter to its children.
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
    """The interpreter name of a process of multiprocessing, used once its number is known."""
    is_helper = False
    worker: tuple[Any, ...] = ()
    ordinals = itertools.count()
    """Numbers of the draws of `worker`. A process never returns to an earlier worker."""


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
    """Count the earlier interpreters of this group. Each appends a byte to a file in the directory of the reports."""
    if not seeds._NOTES:
        return 0
    fd = os.open(f"{os.path.dirname(seeds._NOTES)}/ids-{group}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"\n")
        return os.lseek(fd, 0, os.SEEK_CUR) - 1
    finally:
        os.close(fd)


def restart() -> None:
    """Rename this process: it is a forked child, or multiprocessing has just given it its number."""
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
    digest: bytes = streams._sha256("\0".join(("repro-env/ids/1", seeds._STREAMS, *words)).encode())
    return digest
