"""Note why a process failed, from its exceptions: {"failure": kind, "what": name}. Loaded only after an exception.

Kinds: a `path` that does not exist, a `read-only` path that could not be written, a `module` that cannot be imported, a
`program` that is not installed, a `host` that cannot be reached. The causes of an exception are read as well, because
libraries catch an exception and raise another.
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
"""The most exceptions of a chain that are read."""
_TEXT = 4096
"""The most characters of a message that are searched for paths."""
_MOST = 16
"""The most notes of a process."""
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_OFFLINE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
"""Exceptions that huggingface_hub raises without a network."""
_PATHS = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`|(?<![\w:/.-])([\w.-]*/[^\s'\",:;()\[\]<>]+)")
_TOOL = re.compile(r"(?<![\w./+-])(?:(?:c|g|clang)\+\+|gcc|clang|nvcc|hipcc|[Nn]inja|cmake)(?![\w/+-])")
"""Build tools that libraries start while a script runs. If one is missing, its name is only in the text of the exception."""
_UNNAMED = {"C++ compiler": "g++", "C compiler": "gcc", "CUDA_HOME": "nvcc"}
"""Phrase in a message of PyTorch or Triton -> the missing program."""
_notes: dict[tuple[str, str], None] = {}


def add(error: BaseException | None) -> None:
    """Collect the facts in an exception and in its causes. They are noted at exit."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited and len(visited) < _CHAIN:
        visited.add(id(error))
        try:
            for fact in _facts(error):
                if len(_notes) < _MOST:
                    _notes[fact] = None
        except Exception as problem:  # the `__str__` of an exception may fail
            seeds.note_problem("failure", problem)
        error = error.__cause__ or error.__context__


def forget() -> None:
    """In a forked child: the parent notes its own failures."""
    _notes.clear()


def finish() -> None:
    """Write the notes."""
    for kind, what in _notes:
        seeds.note({"failure": kind, "what": what})
    _notes.clear()


def _facts(error: BaseException) -> Iterator[tuple[str, str]]:
    socket = sys.modules.get("socket")
    if isinstance(error, ModuleNotFoundError):
        yield "module", str(error.name or "")
    elif type(error).__name__ in _OFFLINE or (socket is not None and isinstance(error, socket.gaierror)):
        yield "host", ""
    elif type(error).__name__ == "CalledProcessError" and getattr(error, "returncode", 0) == 127:
        command = getattr(error, "cmd", "")
        if isinstance(command, str) and command.split():  # exit code 127 of a shell: the program was not found
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
            if not any(os.path.exists(os.path.join(directory, name.lower())) for directory in os.get_exec_path()):
                yield "program", name.lower()
        for groups in _PATHS.findall(text):
            name = "".join(groups)
            if ("/" in name or "." in name) and name.isprintable():
                yield from _missing(name)


def _missing(name: str) -> Iterator[tuple[str, str]]:
    """A path that does not exist. A relative path may refer to the directory in which the process started."""
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
