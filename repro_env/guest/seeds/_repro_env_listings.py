"""List directories in the order of the bytes of their names. The order of the system depends on the file system.

`glob`, `pathlib`, `os.walk`, `shutil` and `importlib.metadata` list through these two functions. The interpreter's own search
for modules does not, because its result has no order. Libraries that list in C or C++ (`READERS`) are not reached.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READERS = ("duckdb", "nvidia.dali", "polars", "pyarrow", "tensorflow")
"""Modules that list directories in other languages than Python."""


def sorted_names(names: list[Any]) -> list[Any]:
    names.sort(key=os.fsencode)
    return names


class SortedEntries:
    """The iterator of `os.scandir`, with sorted entries. It reads the directory when the first entry is requested."""

    def __init__(self, entries: Any) -> None:
        self._plain = entries
        self._entries: Any = None

    def __iter__(self) -> SortedEntries:
        return self

    def __next__(self) -> Any:
        if self._entries is None:
            self._entries = iter(sorted(self._plain, key=lambda entry: os.fsencode(entry.name)))
        return next(self._entries)

    def close(self) -> None:
        """Close the directory. There are no more entries."""
        self._plain.close()
        self._entries = iter(())

    def __enter__(self) -> SortedEntries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def order() -> str:
    """The order of listings in this process, for the record."""
    readers = ", ".join(name for name in READERS if name in sys.modules)
    return f"sorted, but not by {readers}" if readers else "sorted"
