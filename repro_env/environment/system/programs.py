"""Find what `--with` names: a program by name or path, a package by name, or a directory that no package owns."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from repro_env.environment.system.packages import Database, Package
from repro_env.environment.system.tree import chain, real
from repro_env.oci.paths import SYSTEM_PATH
from repro_env.schema.errors import UsageError

_MAX_LINE = 256
"""Bytes of the first line that the kernel reads (execve(2))."""
_MAX_DEPTH = 4
"""Scripts whose interpreter is itself a script."""


class Program(msgspec.Struct, frozen=True):
    """A program that `--with` names, or the interpreter of a script that it names."""

    chain: tuple[str, ...] = ()
    """Every path from the name to the file, with directories resolved; empty if a package was named."""
    package: Package | None = None
    directory: str = ""
    """The real path, if a directory was named."""

    @property
    def file(self) -> str:
        """The path of the program itself; empty for a package or directory."""
        return "" if self.directory or not self.chain else self.chain[-1]


def find(system: Database, name: str) -> tuple[Program, ...]:
    """The program and the interpreters of a script. Raises `UsageError` for an unknown name or a shared directory."""
    path = name if name.startswith("/") else shutil.which(name, path=SYSTEM_PATH)
    if path is not None and Path(path).is_dir():
        return (_directory(system, path, name),)
    if path is None or not Path(path).is_file():
        package = None if path else system.find(name)
        if package is None:
            hint = "install it on this machine first, or give the full path of the program"
            raise UsageError(f"{name} is neither a program nor a package of this machine", where=f"--with {name}", hint=hint)
        return (Program(package=package),)
    programs = [Program(chain(path))]
    while len(programs) <= _MAX_DEPTH and (command := script_interpreter(programs[-1].file)) and Path(command).is_file():
        programs.append(Program(chain(command)))
    return tuple(programs)


def _directory(system: Database, path: str, name: str) -> Program:
    directory = real(path)
    if directory == "/" or system.owners([directory]):
        raise UsageError(
            f"{name} is a directory that system packages share",
            where=f"--with {name}",
            hint="name a program, a package, or a directory that no package owns",
        )
    return Program(chain(path.rstrip("/")), directory=directory)


def script_interpreter(path: str) -> str:
    """The absolute path of the interpreter of a script, looked up through env(1) if the script does so.

    It need not exist. Empty for other files, and if env(1) finds none.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            start = file.read(_MAX_LINE)
    except OSError:
        return ""
    if not start.startswith(b"#!"):
        return ""
    words = start[2:].split(b"\n")[0].decode(errors="replace").split()
    if words and words[0].rpartition("/")[2] == "env":
        arguments = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        command = shutil.which(arguments[0], path=SYSTEM_PATH) if arguments else None
    else:
        command = words[0] if words else None
    return command if command and command.startswith("/") else ""
