"""Count what an ignored directory contains, without opening any file."""

from __future__ import annotations

import os
import re

import msgspec

CACHES = frozenset(
    {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", "node_modules", ".tox", ".nox"}
)
STORES = frozenset({".git", ".hg", ".svn"})
"""Directories of version control."""
LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
"""`x.cpython-311-x86_64-linux-gnu.so`, `x.abi3.so`, `x.so`, `libx.so.1`: libraries that were built in place."""
EXTENSION = re.compile(r".+\.(?:cpython-[A-Za-z0-9_-]+|abi3)\.so")
"""Extension modules with a tag of Python in their names."""


class Survey(msgspec.Struct):
    """The content of an ignored directory."""

    size: int = 0
    """Bytes of all files except bytecode. Without `measure`, directories without code are not included."""
    data: int = 0
    """Bytes of the files outside of environments, caches and version control."""
    files: int = 0
    """Number of the files outside of environments, caches and version control."""
    is_incomplete: bool = False
    """Whether something in it cannot be read."""
    has_extension: bool = False
    """Whether it has an extension module with a tag in its name."""
    has_library: bool = False
    """Whether it has any shared library."""
    has_code: bool = False
    """Whether `import` finds modules in it: Python files, or packages directly below it."""


def survey(top: str, *, measure: bool) -> Survey:
    """Survey a directory. Unreadable directories are not counted."""
    result = Survey()
    pending = [(top, 0, True)]
    while pending:
        directory, depth, may_have_code = pending.pop()
        try:
            with os.scandir(directory) as listing:
                items = list(listing)
            names = {item.name for item in items}
            may_have_code = may_have_code and "pyvenv.cfg" not in names and "conda-meta" not in names
            if not may_have_code and not measure:
                continue
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    has_no_code = item.name in CACHES or item.name in STORES
                    if item.name != "__pycache__" and (measure or not has_no_code):
                        pending.append((item.path, depth + 1, may_have_code and not has_no_code))
                elif item.is_file(follow_symlinks=False):
                    size = item.stat(follow_symlinks=False).st_size
                    result.size += size
                    if may_have_code:
                        result.data += size
                        result.files += 1
                        result.has_extension |= EXTENSION.fullmatch(item.name) is not None
                        result.has_library |= LIBRARY.fullmatch(item.name) is not None
                        result.has_code |= (depth == 0 and item.name.endswith(".py")) or (
                            depth == 1 and item.name == "__init__.py"
                        )
        except OSError:
            result.is_incomplete = True
    return result
