"""Digests of the random ids of a run and of host and user names, so that records can be compared without the values."""

from __future__ import annotations

import hashlib


def digest_of_id(normal: str) -> str:
    """Return the digest of a random id, 16 hexadecimal digits. `normal`: the result of `normal_id`, or its first eight digits."""
    return hashlib.sha256(f"repro-env id\0{normal}".encode()).hexdigest()[:16]


def normal_id(digits: str) -> str:
    """Normalize an id: lower-case hexadecimal digits; if there are 32, with the version and variant of a version 4 UUID."""
    digits = digits.lower()
    if len(digits) != 32:
        return digits
    return f"{digits[:12]}4{digits[13:16]}{int(digits[16], 16) & 3 | 8:x}{digits[17:]}"


def digest_of_name(name: str) -> str:
    """Return the digest of a host name or user name, 16 hexadecimal digits."""
    return hashlib.sha256(f"repro-env own\0{name}".encode()).hexdigest()[:16]
