"""The library for decompression: isal if it is installed (`repro-env[fast]`), which is twice as fast as zlib.

Its output is always checked by CRC, size or sha256, so the choice cannot change a digest.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any


def _inflater() -> Any:
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib


ZLIB = _inflater()
"""`zlib` or a compatible module: decompressobj, crc32, error."""
