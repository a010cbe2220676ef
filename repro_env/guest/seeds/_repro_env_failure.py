"""Report why a process failed, from its exceptions: {"failure": kind, "what": name}. Loaded only after an exception.

Kinds: a `path` that does not exist, a `read-only` path that could not be written, a `module` that cannot be imported, a
`program` that is not installed, a `host` that cannot be reached. The causes of an exception are read as well, because
libraries catch an exception and raise another. Messages of exceptions are not read. An `open` is a path that was opened, did not
exist, and does not exist at the end either, whatever the script did about the exception.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_CHAIN = 20
"""The most exceptions of a chain that are read."""
_PATHS = 32
"""The most missing paths of a process that are reported: the last ones."""
_missing: dict[str, None] = {}
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_OFFLINE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
"""Exceptions that huggingface_hub raises without a network."""


def report(error: BaseException | None) -> None:
    """Report the facts in an exception and in its causes."""
    visited: set[int] = set()
    facts: dict[tuple[str, str], None] = {}
    while error is not None and id(error) not in visited and len(visited) < _CHAIN:
        visited.add(id(error))
        facts.update(dict.fromkeys(_facts(error)))
        error = error.__cause__ or error.__context__
    for kind, what in facts:
        seeds.report({"failure": kind, "what": what})


def missing(error: FileNotFoundError) -> None:
    """Remember the path of a failed open."""
    if isinstance(error.filename, (str, bytes)):
        path = os.path.abspath(os.fsdecode(error.filename))
        _missing.pop(path, None)
        _missing[path] = None
        if len(_missing) > _PATHS:
            del _missing[next(iter(_missing))]


def finish() -> None:
    """Report the paths that are still missing."""
    for path in _missing:
        if not os.path.lexists(path):
            seeds.report({"failure": "open", "what": path})


def forget() -> None:
    """Leave the paths of the parent to the parent."""
    _missing.clear()


def _facts(error: BaseException) -> Iterator[tuple[str, str]]:
    socket = sys.modules.get("socket")
    if isinstance(error, ModuleNotFoundError):
        yield "module", str(error.name or "")
    elif type(error).__name__ in _OFFLINE or (socket is not None and isinstance(error, socket.gaierror)):
        yield "host", ""
    elif isinstance(error, OSError) and error.errno in _UNREACHABLE:
        yield "host", ""
    elif isinstance(error, OSError) and error.filename is not None and not isinstance(error.filename, int):
        name = os.fsdecode(error.filename)
        if error.errno == errno.EROFS:
            yield "read-only", os.path.abspath(name)
        elif "/" not in name and _starts_program(error):
            yield "program", name
        else:
            # A relative path may refer to the directory in which the process started.
            for directory in dict.fromkeys((os.getcwd(), seeds._State.directory)):
                path = os.path.normpath(os.path.join(directory, name))
                if not os.path.lexists(path):
                    yield "path", path


def _starts_program(error: OSError) -> bool:
    """Whether the exception was raised while starting a program, and not while opening a file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("_execute_child", "_posix_spawn", "_execvpe"):
            return True
        trace = trace.tb_next
    return False
