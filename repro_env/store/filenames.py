"""Digests as file names."""

from __future__ import annotations

import re

from repro_env.schema.errors import StoreError

_HEX = re.compile(r"[0-9a-f]{64}")


def hex_of(digest: str) -> str:
    """Return the 64 hexadecimal digits of `sha256:<hex>` or `<hex>`. Raises `StoreError` for anything else, such as a path."""
    digits = digest.removeprefix("sha256:")
    if not _HEX.fullmatch(digits):
        raise StoreError(
            f"the digest {digest!r} is not a sha256", hint="the spec or record that contains it is damaged; restore it"
        )
    return digits
