"""Decompress gzip, with isal if it is installed (`repro-env[fast]`), which is twice as fast as zlib.

The output is always checked by CRC, size or sha256, so the choice of the library cannot change a digest.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from repro_env.oci.entry import CHUNK


def _inflater() -> Any:
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib


ZLIB = _inflater()
"""`zlib` or a compatible module: decompressobj, crc32, error."""


def gunzip(read: Callable[[], bytes], bad: Callable[[str], Exception], data: bytes = b"") -> Iterator[bytes]:
    """Decompress one gzip member after another, at most `CHUNK` of output at a time. Nothing may follow them.

    `read` returns the next bytes, empty only at the end; `data`: bytes that were read before. `bad` returns the error for
    damaged bytes.
    """
    data = data or read()
    while data:
        member = ZLIB.decompressobj(31)
        while not member.eof:
            try:
                out = member.decompress(data, CHUNK)
            except ZLIB.error as error:
                raise bad(f"is damaged: {error}") from None
            if out:
                yield out
            if not member.eof:
                data = member.unconsumed_tail or (b"" if len(out) == CHUNK else read())
                if not data and len(out) < CHUNK:
                    raise bad("is truncated")
        data = member.unused_data or read()
