"""What `--with` asks for: a program by name or path, a package by name, or a whole folder that belongs to nobody."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from repro_env.base.packages import Database, Package
from repro_env.base.tree import real
from repro_env.image.layout import SYSTEM_PATH
from repro_env.model.errors import UsageError

_LINE = 256
"""Bytes of a first line that the kernel reads (execve(2))."""
_DEEP = 4
"""Scripts whose interpreter is a script."""


class Program(msgspec.Struct, frozen=True):
    """What one `--with` asks for, or what a script that it asks for runs in."""

    chain: tuple[str, ...] = ()
    """Every path from the name to the file, folders resolved; empty when a package was named."""
    package: Package | None = None
    folder: str = ""
    """Its real path, when a folder was named."""

    @property
    def file(self) -> str:
        """The program's own; empty when there is none."""
        return "" if self.folder or not self.chain else self.chain[-1]


def find(system: Database, name: str) -> tuple[Program, ...]:
    """The program, and the interpreters of a script. Raises `UsageError` for what is not there, or is a shared folder."""
    path = name if name.startswith("/") else shutil.which(name, path=SYSTEM_PATH)
    if path is not None and Path(path).is_dir():
        return (_folder(system, path, name),)
    if path is None or not Path(path).is_file():
        package = None if path else system.named(name)
        if package is None:
            hint = "install it on this machine first, or give the full path of the program"
            raise UsageError("is neither a program nor a package of this machine", where=f"--with {name}", hint=hint)
        return (Program(package=package),)
    found = [Program(_chain(path))]
    while len(found) <= _DEEP and (command := interpreter(found[-1].file)):
        found.append(Program(_chain(command)))
    return tuple(found)


def _folder(system: Database, path: str, name: str) -> Program:
    place = real(path)
    if place == "/" or system.owners([place]):
        raise UsageError(
            "is neither a program nor a package of this machine: it is a folder that packages share",
            where=f"--with {name}",
            hint="name a program, a package, or a folder that belongs to no package",
        )
    return Program(_chain(path.rstrip("/")), folder=place)


def _chain(path: str) -> tuple[str, ...]:
    chain = []
    for _ in range(40):
        folder, _, last = path.rpartition("/")
        folder = real(folder or "/").rstrip("/")
        path = f"{folder}/{last}"
        chain.append(path)
        if not Path(path).is_symlink():
            break
        path = os.path.normpath(Path(folder or "/", Path(path).readlink()))
    return tuple(chain)


def interpreter(path: str) -> str:
    """The program that a script runs in, through env(1) where it says so; empty for what is no script, or runs in nothing here."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            start = file.read(_LINE)
    except OSError:
        return ""
    if not start.startswith(b"#!"):
        return ""
    words = start[2:].split(b"\n")[0].decode(errors="replace").split()
    if words and words[0].rpartition("/")[2] == "env":
        asked = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        command = shutil.which(asked[0], path=SYSTEM_PATH) if asked else None
    else:
        command = words[0] if words else None
    return command if command and command.startswith("/") and Path(command).is_file() else ""
