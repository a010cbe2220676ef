"""The disk space that a build needs."""

from __future__ import annotations

from pathlib import Path

from repro_env.io.files import free
from repro_env.schema.errors import DiskError

BLOCK = 4096
"""Block size of a file system in bytes."""


def round_up_to_blocks(size: int) -> int:
    """Return the bytes that a file of this size takes on disk."""
    return -size % BLOCK + size


def check_free_space(root: Path, size: int, files: int) -> None:
    """Check that the file system of the store has `size` free bytes and `files` free inodes. Raises `DiskError`."""
    free_size, free_files = free(root)
    hint = "free some disk space there, or set REPRO_ENV_STORE to a directory on another disk"
    if size > free_size:
        raise DiskError(f"the build needs {size:,} bytes, but the disk has only {free_size:,} free", where=str(root), hint=hint)
    if files > free_files:
        raise DiskError(
            f"the build needs {files:,} files, and the disk has {free_files:,} free inodes", where=str(root), hint=hint
        )
