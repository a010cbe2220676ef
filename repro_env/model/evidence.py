"""Digests of what a run drew, and of what its machine is called. They are compared, and never turned back."""

from __future__ import annotations

import hashlib


def digest_of_id(normal: str) -> str:
    """The digest of a random id: 16 hexadecimal digits. `normal`: as of `normal_id`, or the first eight digits of it."""
    return hashlib.sha256(f"repro-env id\0{normal}".encode()).hexdigest()[:16]


def normal_id(digits: str) -> str:
    """The one form of an id: lower-case hexadecimal digits; 32 of them with the version and variant of a UUID of version 4."""
    digits = digits.lower()
    if len(digits) != 32:
        return digits
    return f"{digits[:12]}4{digits[13:16]}{int(digits[16], 16) & 3 | 8:x}{digits[17:]}"


def digest_of_name(name: str) -> str:
    """The digest of a host's or user's name: 16 hexadecimal digits."""
    return hashlib.sha256(f"repro-env own\0{name}".encode()).hexdigest()[:16]
