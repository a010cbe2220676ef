"""Digests as file names."""

from __future__ import annotations

import re

from repro_env.model.errors import StoreError

_HEX = re.compile(r"[0-9a-f]{64}")


def hex_of(digest: str) -> str:
    """The 64 hexadecimal digits of `sha256:<hex>` or `<hex>`. Raises `StoreError` for anything else, so no path can hide in it."""
    found = digest.removeprefix("sha256:")
    if not _HEX.fullmatch(found):
        raise StoreError(f"not a sha256: {digest!r}", hint="the spec or record that names it is damaged")
    return found
