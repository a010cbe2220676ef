"""Small ELF files: a header, one loaded segment, a dynamic section and its strings. Nothing that could run."""

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
    bits: int = 64,
    machine: int = 62,
    order: str = "<",
) -> bytes:
    """The bytes of a library or, with an interpreter, of a program. gABI, figures 4-3, 5-1 and 5-9."""
    wide = bits == 64
    head, each = (64, 56) if wide else (52, 32)
    strings = bytearray(b"\0")
    pairs: list[tuple[int, int]] = []
    for kind, text in [*(("needed", one) for one in needed), ("soname", soname), ("rpath", rpath), ("runpath", runpath)]:
        if text:
            pairs.append((TAGS[kind], len(strings)))
            strings += text.encode() + b"\0"
    count = 3 if interpreter else 2
    at = head + each * count
    base = 0x400000
    if nodeflib:
        pairs.append((0x6FFFFFFB, 0x800))
    word = "Q" if wide else "I"
    size = (len(pairs) + 2) * (16 if wide else 8)
    pairs += [(5, base + at + size), (0, 0)]
    dynamic = b"".join(struct.pack(f"{order}2{word}", *pair) for pair in pairs)
    body = dynamic + bytes(strings) + interpreter.encode() + b"\0"
    total = at + len(body)

    def segment(kind: int, offset: int, length: int) -> bytes:
        if wide:
            return struct.pack(f"{order}IIQQQQQQ", kind, 4, offset, base + offset, 0, length, length, 1)
        return struct.pack(f"{order}IIIIIIII", kind, offset, base + offset, 0, length, length, 4, 1)

    headers = segment(1, 0, total) + segment(2, at, size)
    if interpreter:
        headers += segment(3, at + size + len(strings), len(interpreter) + 1)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    start = struct.pack(f"{order}HHI3{word}IHHHHHH", 3, machine, 1, 0, head, 0, 0, head, each, count, 0, 0, 0)
    return ident + start + headers + body


def place(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)
