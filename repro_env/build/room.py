"""The room on the disk that a build takes."""

from __future__ import annotations

from pathlib import Path

from repro_env.io.files import free
from repro_env.model.errors import DiskError

BLOCK = 4096
"""Bytes that file systems give out at once."""


def blocks(size: int) -> int:
    """The bytes that a file of this size takes."""
    return -size % BLOCK + size


def enough(root: Path, size: int, files: int) -> None:
    """Raises `DiskError` when the file system of the store has less room than `size` bytes or `files` inodes."""
    free_size, free_files = free(root)
    hint = "free some room there, or put the store elsewhere with REPRO_ENV_STORE"
    if size > free_size:
        raise DiskError(f"{size:,} bytes have to be written and {free_size:,} are free", where=str(root), hint=hint)
    if files > free_files:
        raise DiskError(f"{files:,} files have to be made and {free_files:,} inodes are free", where=str(root), hint=hint)
