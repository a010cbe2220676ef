"""Who inflates: isal when it is installed (`repro-env[fast]`), twice as fast as zlib.

What comes out is checked by CRC, size or sha256 wherever it is used, so the choice cannot change a digest.
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
"""`zlib` or its stand-in: decompressobj, crc32, error."""
