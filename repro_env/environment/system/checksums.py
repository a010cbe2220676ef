"""Compare installed files with the checksums in the package database."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from repro_env.schema import codec
from repro_env.store.facts import FactCache

KIND = "package-files"
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
"""By the length of a hex digest."""
_CHUNK = 1 << 20
_BATCH = 64
"""Files that a thread hashes in one task."""


class PackagedFile(msgspec.Struct, frozen=True):
    """A file, and the checksum that its package lists for it."""

    path: str
    digest: str
    """Hex; empty for a file that was replaced by a symlink, which always counts as edited."""
    package: str

    @property
    def line(self) -> str:
        return f"{self.path} ({self.package})"


def find_edited(files: Sequence[PackagedFile], hashes: Mapping[str, str], cache: FactCache | None) -> tuple[str, ...]:
    """Files that differ from what their package installed, as `<path> (<package>)`, sorted.

    `hashes`: sha256 (hex) by path without its leading slash, where it was computed already: files whose package lists a
    sha256 need no second reading. `cache` remembers the result for the other files.
    """
    lines = {file.line for file in files if not file.digest}
    unverified = []
    for file in files:
        sha256 = hashes.get(file.path[1:], "")
        if sha256 and len(file.digest) == len(sha256):
            if file.digest != sha256:
                lines.add(file.line)
        elif file.digest:
            unverified.append((file, sha256))
    if cache is None or not all(sha256 for _, sha256 in unverified):
        lines.update(_find_differing([file for file, _ in unverified]))
    elif unverified:
        key = codec.digest([[file.path, file.package, file.digest, sha256] for file, sha256 in unverified])
        differing = cache.recall(KIND, key, tuple[str, ...])
        if differing is None:
            differing = _find_differing([file for file, _ in unverified])
            cache.put(KIND, key, codec.canonical(differing))
        lines.update(differing)
    return tuple(sorted(lines))


def _find_differing(files: Sequence[PackagedFile]) -> tuple[str, ...]:
    batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return tuple(sorted({line for lines in pool.map(_compare, batches) for line in lines}))


def _compare(files: Sequence[PackagedFile]) -> list[str]:
    return [file.line for file in files if _digest(file.path, len(file.digest)) != file.digest]


def _digest(path: str, length: int) -> str:
    """Hex; empty for an unknown algorithm, and for an unreadable file, which hashing the tree reports as an error."""
    if length not in _ALGORITHMS:
        return ""
    hasher = hashlib.new(_ALGORITHMS[length], usedforsecurity=False)
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except OSError:
        return ""
    return hasher.hexdigest()
