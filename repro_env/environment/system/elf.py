"""Read the facts of an ELF file that decide which libraries the dynamic loader loads.

Parsed directly (gABI, "Program Header" and "Dynamic Section"): nothing is executed, and only a few hundred bytes are read,
whatever the size of the library. Only 64-bit little-endian files are read; no other program can run in an image.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import msgspec

from repro_env.io.files import key_of
from repro_env.schema.errors import LockError
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileFacts

X86_64, AARCH64 = 62, 183
"""`e_machine`."""
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
"""`uname -m` -> `e_machine`."""
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TAG = struct.Struct("<QQ")
_MAX_STRING = 4096
"""PATH_MAX; no real search path is longer."""
_MAX_TAGS = 1 << 16
"""Entries of a dynamic section: far more than in any real file."""


class Elf(msgspec.Struct, frozen=True):
    """The dynamic section of a file."""

    machine: int
    """`e_machine`."""
    interpreter: str
    """The dynamic loader that the kernel starts; empty for libraries and static programs."""
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    """Split at `:`; dropped by the loader when there is a `runpath`."""
    runpath: tuple[str, ...]


class KeptElves:
    """Reads files as `read`, and keeps what it read in the store until a file changes."""

    def __init__(self, facts: FactCache, prefix: str) -> None:
        """`prefix`: of the environment that needs the files."""
        self._files = FileFacts[Elf | None](facts, "elf", os.fsencode(prefix).hex(), Elf | None, read)

    def read(self, path: str) -> Elf | None:
        return self._files.of(key_of(os.stat(path)), path)  # noqa: PTH116 - a path object takes longer

    def save(self) -> None:
        self._files.save()


def read(path: str | Path) -> Elf | None:
    """The facts of a file; None if it is not an ELF file. Raises `LockError` if it is damaged, `OSError` if it is unreadable."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
        if file.read(4) != b"\x7fELF":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(data)
            except (struct.error, ValueError, IndexError, OverflowError):
                raise LockError(
                    "this ELF file is damaged", where=str(path), hint="reinstall the package that owns this file"
                ) from None


def _parse(data: mmap.mmap) -> Elf | None:
    if (data[4], data[5]) != (2, 1):
        return None
    (machine,) = struct.unpack_from("<H", data, 18)
    (headers,) = struct.unpack_from("<Q", data, 32)
    header_size, count = struct.unpack_from("<HH", data, 54)
    if count and header_size != _SEGMENT.size:
        raise ValueError("its program headers have an unknown size")
    interpreter = ""
    loads: list[tuple[int, int, int]] = []
    tags: list[tuple[int, int]] = []
    for number in range(count):
        kind, _, offset, address, _, size, _, _ = _SEGMENT.unpack_from(data, headers + number * header_size)
        if kind == _PT_LOAD:
            loads.append((address, size, offset))
        elif kind == _PT_DYNAMIC:
            tags = _tags(data, offset, size)
        elif kind == _PT_INTERP:
            interpreter = _string(data, offset)
    values = dict(reversed(tags))
    strings = _offset(values[_STRTAB], loads) if _STRTAB in values else 0

    def text(tag: int) -> str:
        return _string(data, strings + values[tag]) if strings and tag in values else ""

    needed = tuple(_string(data, strings + value) for tag, value in tags if tag == _NEEDED) if strings else ()
    return Elf(
        machine=machine,
        interpreter=interpreter,
        soname=text(_SONAME),
        needed=needed,
        rpath=tuple(filter(None, text(_RPATH).split(":"))),
        runpath=tuple(filter(None, text(_RUNPATH).split(":"))),
    )


def _tags(data: mmap.mmap, offset: int, size: int) -> list[tuple[int, int]]:
    """The dynamic section's (tag, value) pairs, up to its end mark."""
    if size > _MAX_TAGS * _TAG.size or offset + size > len(data):
        raise ValueError("its dynamic section cannot be read")
    tags: list[tuple[int, int]] = []
    for tag, value in _TAG.iter_unpack(data[offset : offset + size - size % _TAG.size]):
        if tag == 0:
            break
        tags.append((tag, value))
    return tags


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int:
    """The offset in the file of a virtual address. `loads`: (address, bytes in the file, offset) of each loaded segment."""
    for start, size, offset in loads:
        if start <= address < start + size:
            return offset + address - start
    raise ValueError("its string table is not loaded")


def _string(data: mmap.mmap, offset: int) -> str:
    end = data.find(b"\0", offset, offset + _MAX_STRING)
    if end < 0:
        raise ValueError("a string has no end")
    return data[offset:end].decode()
