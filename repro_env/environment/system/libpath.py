"""Read `LD_LIBRARY_PATH`, `LD_PRELOAD` and `/etc/ld.so.preload`, which change the dynamic loader's search (ld.so(8))."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.io.files import read_text


class LibPath(msgspec.Struct, frozen=True):
    """The entries that are independent of the working directory, and a line for each other entry."""

    directories: tuple[str, ...] = ()
    """Absolute, in order, without `..` and trailing slashes."""
    preload: tuple[str, ...] = ()
    """Absolute paths, or names to search for."""
    ignored: tuple[str, ...] = ()
    """One line for each entry that is ignored."""


def read(environ: Mapping[str, str], preload: Path = Path("/etc/ld.so.preload")) -> LibPath:
    """Read the variables of a process, and the file `preload` of this machine."""
    ignored: list[str] = []
    directories: list[str] = []
    value = environ.get("LD_LIBRARY_PATH", "")
    for entry in re.split("[:;]", value) if value else ():
        if not entry.isprintable() or "$" in entry or not entry.startswith("/"):
            ignored.append(_ignored("LD_LIBRARY_PATH", entry))
        else:
            directories.append(os.path.realpath(entry) if ".." in entry else entry.rstrip("/") or "/")
    libraries: list[str] = []
    for source, text in (("LD_PRELOAD", environ.get("LD_PRELOAD", "")), (str(preload), read_text(preload))):
        for entry in re.split(r"[:\s]+", text):
            if not entry.isprintable() or "$" in entry or ("/" in entry and not entry.startswith("/")):
                ignored.append(_ignored(source, entry))
            elif entry:
                libraries.append(entry)
    return LibPath(tuple(dict.fromkeys(directories)), tuple(dict.fromkeys(libraries)), tuple(dict.fromkeys(ignored)))


def _ignored(source: str, entry: str) -> str:
    return f"{source} has {entry!r}, whose meaning depends on the program or the working directory: ignored"
