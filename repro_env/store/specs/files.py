"""The files that belong to a spec. Other files in its directory are not packed or pushed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.schema.patterns import lazy

FILES = (
    ".dockerignore",
    "Dockerfile",
    "conda-explicit.txt",
    "image-files.txt.gz",
    "install.py",
    "pylock.toml",
    "remote.json",
    "requirements.txt",
    "sbom.cdx.json",
    "spec.json",
)
"""The files that capture and push write next to `blobs/`."""
SPEC = "spec.json"
REMOTE = "remote.json"
BLOBS = "blobs"
BLOB = lazy(r"[0-9a-f]{64}(?:\.gz)?")
"""The name of a blob: the sha256 of its bytes, or `.gz` with the sha256 of its uncompressed bytes."""
MAX_SIZE = 256 << 20
"""Largest size of one of the files in bytes; in practice they have at most a few MB."""


def present(directory: Path) -> tuple[str, ...]:
    """Return the names of the files that are there, sorted. Symlinks do not count: their target is not part of the spec."""
    return tuple(name for name in FILES if (directory / name).is_file() and not (directory / name).is_symlink())


def update(output: Path, documents: Mapping[str, bytes]) -> None:
    """Write files by name. A file that has these bytes is not written again."""
    for name, data in documents.items():
        path = output / name
        if not path.is_file() or path.read_bytes() != data:
            atomic_write(path, data)
