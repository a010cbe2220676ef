"""Read this machine's `/etc/ld.so.cache`, and write the image's, which has some of its lines.

Format `glibc-ld.so.cache1.1` (glibc, sysdeps/generic/dl-cache.h): a header, entries of 24 bytes sorted downwards by
`_dl_cache_libcmp`, strings, and an extension that names hwcaps subdirectories. Offsets count from the start of the file.
Every glibc since 2.2 reads it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import msgspec

from repro_env.environment.system import elf

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_SECTION = struct.Struct("<IIII")
_EXTENSION = 0xEAA42174
_TAG_HWCAPS = 1
_HWCAP = 1 << 62
"""In an entry's hwcap field: the low 32 bits are an index into the extension's subdirectory names."""
_LITTLE = 2
FLAGS = {elf.X86_64: 0x0303, elf.AARCH64: 0x0A03}
"""`e_machine` -> FLAG_ELF_LIBC6 and the ABI (glibc, sysdeps/generic/ldconfig.h)."""


class Library(msgspec.Struct, frozen=True):
    """One line of the cache: the path that the loader opens for a name and an ABI."""

    name: str
    flags: int
    path: str
    hwcaps: str = ""
    """The `glibc-hwcaps` subdirectory, such as `x86-64-v3`; empty for a library outside of these."""


def read(data: bytes) -> tuple[Library, ...]:
    """The lines of a cache in order; empty if the data is not a little-endian cache of this format."""
    libraries: list[Library] = []
    start = data.find(_MAGIC)  # an old-format cache holds a new one in its middle (glibc before 2.32)
    if start < 0 or len(data) < start + _HEADER.size:
        return ()
    data = data[start:]
    _, count, _, order, extension = _HEADER.unpack_from(data)
    if order not in (0, _LITTLE) or _HEADER.size + count * _ENTRY.size > len(data):
        return ()
    names = _hwcaps(data, extension)
    for index in range(count):
        flags, key, value, _, hwcap = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        hwcaps = hwcap & 0xFFFFFFFF
        if hwcap and not (hwcap & _HWCAP and hwcaps < len(names)):
            continue  # a legacy hwcaps directory, which current loaders ignore
        libraries.append(Library(_text(data, key), flags, _text(data, value), names[hwcaps] if hwcap else ""))
    return tuple(libraries)


def add(data: bytes, libraries: Iterable[Library]) -> bytes:
    """A cache with more libraries. A library with a name that the cache already has is not added."""
    lines = read(data)
    names = {(line.name, line.flags) for line in lines}
    more = [library for library in libraries if (library.name, library.flags) not in names]
    return write(sorted((*lines, *more), key=lambda library: _order(library.name), reverse=True))


def _order(name: str) -> list[tuple[bool, int]]:
    """The order of `_dl_cache_libcmp`: digits are compared as numbers, and come after other characters."""
    return [(part.isdigit(), int(part) if part.isdigit() else ord(part)) for part in re.findall(r"[0-9]+|[^0-9]", name)]


def write(libraries: Iterable[Library]) -> bytes:
    """The cache with these libraries, which must be in the order of a cache that was read."""
    lines = tuple(libraries)
    names = sorted({library.hwcaps for library in lines if library.hwcaps})
    start = _HEADER.size + _ENTRY.size * len(lines)
    strings = bytearray()
    offsets_by_text: dict[str, int] = {}

    def add(text: str) -> int:
        if text not in offsets_by_text:
            offsets_by_text[text] = start + len(strings)
            strings.extend(text.encode() + b"\0")
        return offsets_by_text[text]

    entries = b"".join(
        _ENTRY.pack(
            library.flags, add(library.name), add(library.path), 0, _HWCAP | names.index(library.hwcaps) if library.hwcaps else 0
        )
        for library in lines
    )
    table = struct.pack(f"<{len(names)}I", *(add(name) for name in names))
    length = len(strings)
    strings.extend(bytes(-len(strings) % 4))
    extension = start + len(strings) if names else 0
    tail = b""
    if names:
        tail = struct.pack("<II", _EXTENSION, 1) + _SECTION.pack(_TAG_HWCAPS, 0, extension + 8 + _SECTION.size, len(table))
    header = _HEADER.pack(_MAGIC, len(lines), length, _LITTLE, extension)
    return header + entries + bytes(strings) + tail + table


def _hwcaps(data: bytes, extension: int) -> list[str]:
    if not 0 < extension <= len(data) - 8 or struct.unpack_from("<I", data, extension) != (_EXTENSION,):
        return []
    (count,) = struct.unpack_from("<I", data, extension + 4)
    for number in range(min(count, 16)):
        at = extension + 8 + number * _SECTION.size
        if at + _SECTION.size > len(data):
            break
        tag, _, offset, size = _SECTION.unpack_from(data, at)
        if tag == _TAG_HWCAPS and offset + size <= len(data):
            return [_text(data, value) for (value,) in struct.iter_unpack("<I", data[offset : offset + size - size % 4])]
    return []


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    return data[offset:end].decode(errors="replace") if end >= 0 else ""
