"""Small ELF files: a header, one loaded segment, a dynamic section and its strings. They cannot be executed."""

from __future__ import annotations

import struct
from pathlib import Path

TAGS = {"needed": 1, "soname": 14, "rpath": 15, "runpath": 29}


def elf(
    needed: tuple[str, ...] = (),
    *,
    soname: str = "",
    rpath: str = "",
    runpath: str = "",
    interpreter: str = "",
    nodeflib: bool = False,
    machine: int = 62,
) -> bytes:
    """The bytes of a library or, with an interpreter, of a program. gABI, figures 4-3, 5-1 and 5-9."""
    head, header_size = 64, 56
    strings = bytearray(b"\0")
    pairs: list[tuple[int, int]] = []
    for kind, text in [*(("needed", library) for library in needed), ("soname", soname), ("rpath", rpath), ("runpath", runpath)]:
        if text:
            pairs.append((TAGS[kind], len(strings)))
            strings += text.encode() + b"\0"
    count = 3 if interpreter else 2
    offset = head + header_size * count
    base = 0x400000
    if nodeflib:
        pairs.append((0x6FFFFFFB, 0x800))
    size = (len(pairs) + 2) * 16
    pairs += [(5, base + offset + size), (0, 0)]
    dynamic = b"".join(struct.pack("<2Q", *pair) for pair in pairs)
    body = dynamic + bytes(strings) + interpreter.encode() + b"\0"
    total = offset + len(body)

    def segment(kind: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, 4, offset, base + offset, 0, length, length, 1)

    headers = segment(1, 0, total) + segment(2, offset, size)
    if interpreter:
        headers += segment(3, offset + size + len(strings), len(interpreter) + 1)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    start = struct.pack("<HHI3QIHHHHHH", 3, machine, 1, 0, head, 0, 0, head, header_size, count, 0, 0, 0)
    return ident + start + headers + body


def place(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)
