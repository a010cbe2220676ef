"""Why a process failed, as its exceptions say: {"failure": kind, "what": name}. Read only where there was an exception.

Kinds: `path` that is not there, `read-only` path that was to be written, `module` that cannot be imported, `program` that
is not there, `host` that cannot be reached. What the exceptions that led to the last one say counts as well: libraries
catch one and raise another.
"""

from __future__ import annotations

import errno
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_CHAIN = 20
"""Exceptions of one chain that are read."""
_TEXT = 4096
"""Characters of a message that are searched for paths."""
_MOST = 16
"""Facts of one process."""
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_OFFLINE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
"""Exceptions of huggingface_hub without network."""
_PATHS = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`|(?<![\w:/.-])([\w.-]*/[^\s'\",:;()\[\]<>]+)")
_TOOL = re.compile(r"(?<![\w./+-])(?:(?:c|g|clang)\+\+|gcc|clang|nvcc|hipcc|[Nn]inja|cmake)(?![\w/+-])")
"""Programs that build code while a script runs. Libraries report a missing one in the text of any exception."""
_UNNAMED = {"C++ compiler": "g++", "C compiler": "gcc", "CUDA_HOME": "nvcc"}
"""Phrases in messages of PyTorch and Triton, and the program that is missing."""
_seen: dict[tuple[str, str], None] = {}


def see(error: BaseException | None) -> None:
    """Keep what an exception and those before it say. Noted at the end of the process."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(seen) < _CHAIN:
        seen.add(id(error))
        try:
            for fact in _facts(error):
                if len(_seen) < _MOST:
                    _seen[fact] = None
        except Exception as problem:  # an exception may have a `__str__` that fails
            seeds.problem("failure", problem)
        error = error.__cause__ or error.__context__


def forget() -> None:
    """In a forked child: these are the parent's."""
    _seen.clear()


def finish() -> None:
    """At the end of the process."""
    for kind, what in _seen:
        seeds.note({"failure": kind, "what": what})
    _seen.clear()


def _facts(error: BaseException) -> Iterator[tuple[str, str]]:
    socket = sys.modules.get("socket")
    if isinstance(error, ModuleNotFoundError):
        yield "module", str(error.name or "")
    elif type(error).__name__ in _OFFLINE or (socket is not None and isinstance(error, socket.gaierror)):
        yield "host", ""
    elif type(error).__name__ == "CalledProcessError" and getattr(error, "returncode", 0) == 127:
        command = getattr(error, "cmd", "")
        if isinstance(command, str) and command.split():  # a shell did not find it
            yield "program", command.split()[0]
    elif isinstance(error, OSError) and error.errno in _UNREACHABLE:
        yield "host", ""
    elif isinstance(error, OSError) and error.filename is not None and not isinstance(error.filename, int):
        name = os.fsdecode(error.filename)
        if error.errno == errno.EROFS:
            yield "read-only", os.path.abspath(name)
        elif "/" not in name and _starts_program(error):
            yield "program", name
        else:
            yield from _missing(name)
    else:
        text = str(error)[:_TEXT]
        for name in _TOOL.findall(text) or [program for phrase, program in _UNNAMED.items() if phrase in text]:
            if not any(os.path.exists(os.path.join(folder, name.lower())) for folder in os.get_exec_path()):
                yield "program", name.lower()
        for groups in _PATHS.findall(text):
            name = "".join(groups)
            if ("/" in name or "." in name) and name.isprintable():
                yield from _missing(name)


def _missing(name: str) -> Iterator[tuple[str, str]]:
    """The path, where nothing is there. A relative one may be meant from where the process started."""
    for folder in dict.fromkeys((os.getcwd(), seeds._State.folder)):
        path = os.path.normpath(os.path.join(folder, name))
        if not os.path.lexists(path):
            yield "path", path


def _starts_program(error: OSError) -> bool:
    """Whether the exception came from starting a program, and not from opening a file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("_execute_child", "_posix_spawn", "_execvpe"):
            return True
        trace = trace.tb_next
    return False
