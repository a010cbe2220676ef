"""What an ELF file says to the dynamic loader: the few facts that decide which libraries it pulls in.

Read straight from the file (gABI, "Program Header" and "Dynamic Section"); nothing is executed and only a few
hundred bytes are read, whatever the size of the library.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from repro_env.model.errors import LockError

I386, X86_64, AARCH64 = 3, 62, 183
"""`e_machine`."""
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH, _FLAGS_1 = 1, 5, 14, 15, 29, 0x6FFFFFFB
_NODEFLIB = 0x800
_LONGEST = 4096
"""PATH_MAX; also more than any search path seen in the wild needs."""
_MOST = 1 << 16
"""Program headers, and bytes of a dynamic section times 16: far beyond any real file."""


class Elf(msgspec.Struct, frozen=True):
    """The dynamic section of one file."""

    bits: int
    """32 or 64."""
    machine: int
    """`e_machine`."""
    interpreter: str
    """The dynamic loader that the kernel starts; empty for libraries and static programs."""
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    """Split at `:`; dropped by the loader when there is a `runpath`."""
    runpath: tuple[str, ...]
    default_dirs: bool
    """False when linked with `-z nodefaultlib`."""


def read(path: str | Path) -> Elf | None:
    """The facts of a file, or None when it is no ELF file. Raises `LockError` when it is a broken one, `OSError` when unreadable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        start = os.pread(fd, 64, 0)
        if start[:4] != b"\x7fELF":
            return None
        return _File(fd, start, str(path)).facts()
    finally:
        os.close(fd)


class _File:
    def __init__(self, fd: int, start: bytes, where: str) -> None:
        self._fd = fd
        self._where = where
        kind, order = start[4:5], start[5:6]
        if len(start) < 52 or kind not in (b"\1", b"\2") or order not in (b"\1", b"\2"):
            raise self._broken("its header")
        self._bits = 64 if kind == b"\2" else 32
        self._order = "<" if order == b"\1" else ">"
        if self._bits == 64:
            if len(start) < 64:
                raise self._broken("its header")
            (self._machine,) = struct.unpack_from(f"{self._order}H", start, 18)
            (self._headers,) = struct.unpack_from(f"{self._order}Q", start, 32)
            self._each, self._count = struct.unpack_from(f"{self._order}HH", start, 54)
        else:
            (self._machine,) = struct.unpack_from(f"{self._order}H", start, 18)
            (self._headers,) = struct.unpack_from(f"{self._order}I", start, 28)
            self._each, self._count = struct.unpack_from(f"{self._order}HH", start, 42)
        self._loads: list[tuple[int, int, int]] = []
        """(virtual address, bytes in the file, offset) of each loaded segment."""

    def facts(self) -> Elf:
        interpreter = ""
        dynamic: tuple[int, int] | None = None
        for kind, offset, address, size in self._segments():
            if kind == _PT_LOAD:
                self._loads.append((address, size, offset))
            elif kind == _PT_DYNAMIC:
                dynamic = (offset, size)
            elif kind == _PT_INTERP:
                interpreter = self._string(offset)
        tags = self._tags(*dynamic) if dynamic else []
        values = dict(reversed(tags))
        strings = self._offset(values[_STRTAB]) if _STRTAB in values else 0

        def text(tag: int) -> str:
            return self._string(strings + values[tag]) if strings and tag in values else ""

        needed = tuple(self._string(strings + value) for tag, value in tags if tag == _NEEDED) if strings else ()
        return Elf(
            bits=self._bits,
            machine=self._machine,
            interpreter=interpreter,
            soname=text(_SONAME),
            needed=needed,
            rpath=_split(text(_RPATH)),
            runpath=_split(text(_RUNPATH)),
            default_dirs=not values.get(_FLAGS_1, 0) & _NODEFLIB,
        )

    def _segments(self) -> list[tuple[int, int, int, int]]:
        """(type, offset, virtual address, bytes in the file) of each program header."""
        if not self._count:
            return []
        form = struct.Struct(self._order + ("IIQQQQQQ" if self._bits == 64 else "IIIIIIII"))
        if self._each != form.size:
            raise self._broken("its program headers")
        block = self._exactly(self._headers, self._each * self._count)
        found = []
        for fields in form.iter_unpack(block):
            if self._bits == 64:
                kind, _, offset, address, _, size, _, _ = fields
            else:
                kind, offset, address, _, size, _, _, _ = fields
            found.append((kind, offset, address, size))
        return found

    def _tags(self, offset: int, size: int) -> list[tuple[int, int]]:
        """The dynamic section's (tag, value) pairs, up to its end mark."""
        form = struct.Struct(self._order + ("QQ" if self._bits == 64 else "II"))
        if size > _MOST * form.size:
            raise self._broken("its dynamic section")
        tags: list[tuple[int, int]] = []
        for tag, value in form.iter_unpack(self._exactly(offset, size - size % form.size)):
            if tag == 0:
                break
            tags.append((tag, value))
        return tags

    def _offset(self, address: int) -> int:
        """Where a virtual address lies in the file."""
        for start, size, offset in self._loads:
            if start <= address < start + size:
                return offset + address - start
        raise self._broken("its string table")

    def _string(self, offset: int) -> str:
        data = self._pread(offset, _LONGEST)
        end = data.find(b"\0")
        if end < 0:
            raise self._broken("a string")
        try:
            return data[:end].decode()
        except UnicodeDecodeError:
            raise self._broken("a string") from None

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self._pread(offset, size)
        if len(data) != size:
            raise self._broken("its end")
        return data

    def _pread(self, offset: int, size: int) -> bytes:
        if not 0 <= offset < 1 << 62:
            raise self._broken("an offset")
        return os.pread(self._fd, size, offset)

    def _broken(self, what: str) -> LockError:
        return LockError(f"is a damaged ELF file: {what} cannot be read", where=self._where, hint="reinstall what it belongs to")


def _split(paths: str) -> tuple[str, ...]:
    return tuple(part for part in paths.split(":") if part)
