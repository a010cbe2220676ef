"""`/etc/ld.so.cache`: read the host's, and write the image's by a fixed rule instead of running ldconfig.

Format `glibc-ld.so.cache1.1` (glibc, sysdeps/generic/dl-cache.h): a header, entries of 24 bytes sorted downwards by
`_dl_cache_libcmp`, strings, and an extension that names hwcaps subfolders. Offsets count from the start of the file.
Every glibc since 2.2 reads it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import msgspec

from repro_env.base import elf

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_SECTION = struct.Struct("<IIII")
_EXTENSION = 0xEAA42174
_TAG_HWCAPS = 1
_HWCAP = 1 << 62
"""In an entry's hwcap field: the low 32 bits are an index into the extension's subfolder names."""
_LITTLE = 2
FLAGS = {(64, elf.X86_64): 0x0303, (64, elf.AARCH64): 0x0A03, (32, elf.I386): 0x0003}
"""(bits, machine) -> FLAG_ELF_LIBC6 and the ABI (glibc, sysdeps/generic/ldconfig.h)."""


class Library(msgspec.Struct, frozen=True):
    """One line of the cache: asked for by this name, for this ABI, the loader opens this path."""

    name: str
    flags: int
    path: str
    hwcaps: str = ""
    """`x86-64-v3` and the like, when it lies in a `glibc-hwcaps` subfolder; else empty."""


def read(data: bytes) -> tuple[Library, ...]:
    """The lines of a cache in their order; none for anything that is not a little-endian cache of this format."""
    found: list[Library] = []
    at = data.find(_MAGIC)  # an old-format cache holds a new one in its middle (glibc before 2.32)
    if at < 0 or len(data) < at + _HEADER.size:
        return ()
    data = data[at:]
    _, count, _, order, extension = _HEADER.unpack_from(data)
    if order not in (0, _LITTLE) or _HEADER.size + count * _ENTRY.size > len(data):
        return ()
    names = _hwcaps(data, extension)
    for number in range(count):
        flags, key, value, _, hwcap = _ENTRY.unpack_from(data, _HEADER.size + number * _ENTRY.size)
        index = hwcap & 0xFFFFFFFF
        if hwcap and not (hwcap & _HWCAP and index < len(names)):
            continue  # a legacy hwcaps folder, which no current loader looks into
        found.append(Library(_text(data, key), flags, _text(data, value), names[index] if hwcap else ""))
    return tuple(found)


def write(libraries: Iterable[Library]) -> bytes:
    """The cache that lists these libraries. Of two with equal name and ABI the earlier one is found first."""
    lines = sorted(dict.fromkeys(libraries), key=lambda one: (_order(one.name), one.flags, bool(one.hwcaps)), reverse=True)
    # `reverse` keeps the order of equals, which is what the rule asks for.
    names = sorted({one.hwcaps for one in lines if one.hwcaps})
    start = _HEADER.size + _ENTRY.size * len(lines)
    strings = bytearray()
    placed: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in placed:
            placed[text] = start + len(strings)
            strings.extend(text.encode() + b"\0")
        return placed[text]

    entries = b"".join(
        _ENTRY.pack(one.flags, place(one.name), place(one.path), 0, _HWCAP | names.index(one.hwcaps) if one.hwcaps else 0)
        for one in lines
    )
    offsets = struct.pack(f"<{len(names)}I", *(place(name) for name in names))
    length = len(strings)
    strings.extend(bytes(-len(strings) % 4))
    extension = start + len(strings) if names else 0
    tail = b""
    if names:
        tail = struct.pack("<II", _EXTENSION, 1) + _SECTION.pack(_TAG_HWCAPS, 0, extension + 8 + _SECTION.size, len(offsets))
    header = _HEADER.pack(_MAGIC, len(lines), length, _LITTLE, extension)
    return header + entries + bytes(strings) + tail + offsets


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


def _order(name: str) -> tuple[tuple[int, int], ...]:
    """`_dl_cache_libcmp`: the end before letters, letters before numbers, numbers by value."""
    parts = re.findall(r"[0-9]+|[^0-9]", name)
    return (*((2, int(part)) if part.isdecimal() else (1, ord(part)) for part in parts), (0, 0))
