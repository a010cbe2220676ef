"""Which files make up a spec's folder, so that it can travel: nothing else that lies there is taken along."""

from __future__ import annotations

import re
from pathlib import Path

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
"""What capture and push write beside `blobs/`."""
SPEC = "spec.json"
REMOTE = "remote.json"
BLOBS = "blobs"
BLOB = re.compile(r"[0-9a-f]{64}(?:\.gz)?")
"""A blob's name: the sha256 of its bytes, or of what its gzip holds."""
MAX_SIZE = 256 << 20
"""Bytes of one of the files; the largest known has a few MB."""


def present(folder: Path) -> tuple[str, ...]:
    """Which of the files are there, sorted. A symlink is none: what it leads to is not the spec's."""
    return tuple(name for name in FILES if (folder / name).is_file() and not (folder / name).is_symlink())
