"""Files held against the checksums of the packages that they came with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from repro_env.model import codec
from repro_env.store.facts import FactCache

KIND = "package-files"
_HASHES = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
"""By the length of a hex digest."""
_READ = 1 << 20
_TOGETHER = 64
"""Files that a thread takes at once."""


class Check(msgspec.Struct, frozen=True):
    """A file to compare with what its package delivered."""

    path: str
    digest: str
    """Hex; empty for a file that a link has taken the place of, which nothing equals."""
    package: str

    @property
    def line(self) -> str:
        return f"{self.path} ({self.package})"


def edited(checks: Sequence[Check], hashes: Mapping[str, str], known: FactCache | None) -> tuple[str, ...]:
    """Files that are not as their package installed them, as `<path> (<package>)`, sorted.

    `hashes`: sha256 (hex) by path without its first slash, where it is known: what a package tells in sha256 needs no second
    reading. `known` remembers the rest: the same bytes against the same database need no second look.
    """
    lines = {check.line for check in checks if not check.digest}
    rest = []
    for check in checks:
        sha256 = hashes.get(check.path[1:], "")
        if sha256 and len(check.digest) == len(sha256):
            if check.digest != sha256:
                lines.add(check.line)
        elif check.digest:
            rest.append((check, sha256))
    told = [[check.path, check.package, check.digest, sha256] for check, sha256 in rest]
    if known is None or not all(sha256 for _, sha256 in rest):
        lines.update(_compared([check for check, _ in rest]))
    elif rest:
        key = codec.digest(told)
        found = known.recall(KIND, key, tuple[str, ...])
        if found is None:
            found = _compared([check for check, _ in rest])
            known.put(KIND, key, codec.canonical(found))
        lines.update(found)
    return tuple(sorted(lines))


def _compared(checks: Sequence[Check]) -> tuple[str, ...]:
    parts = [checks[start : start + _TOGETHER] for start in range(0, len(checks), _TOGETHER)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return tuple(sorted({line for lines in pool.map(_differing, parts) for line in lines}))


def _differing(checks: Sequence[Check]) -> list[str]:
    return [check.line for check in checks if _digest(check.path, len(check.digest)) != check.digest]


def _digest(path: str, length: int) -> str:
    """Hex; empty for a file that is gone by now, which the hashing of the tree will say, and for a hash unheard of."""
    if length not in _HASHES:
        return ""
    hasher = hashlib.new(_HASHES[length], usedforsecurity=False)
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            while chunk := file.read(_READ):
                hasher.update(chunk)
    except OSError:
        return ""
    return hasher.hexdigest()
