"""What `LD_LIBRARY_PATH`, `LD_PRELOAD` and `/etc/ld.so.preload` add to the dynamic loader's search (ld.so(8))."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec


class LibPath(msgspec.Struct, frozen=True):
    """Entries that mean the same in every working folder, and words for the others."""

    folders: tuple[str, ...] = ()
    """Absolute, in their order, as they are spelled but for `..` and a slash at the end."""
    preload: tuple[str, ...] = ()
    """Absolute paths, or names to search for."""
    ignored: tuple[str, ...] = ()
    """One line for each that is left out."""


def read(environ: Mapping[str, str], preload: Path = Path("/etc/ld.so.preload")) -> LibPath:
    """Of the variables of a process, and of this machine's file of libraries to preload."""
    ignored: list[str] = []
    folders: list[str] = []
    value = environ.get("LD_LIBRARY_PATH", "")
    for entry in re.split("[:;]", value) if value else ():
        if not entry.isprintable():
            ignored.append(f"LD_LIBRARY_PATH has {entry!r}, which no line of a spec can hold: left out")
        elif "$" in entry:
            ignored.append(f"LD_LIBRARY_PATH has {entry}, which the loader fills in for each program: left out")
        elif not entry.startswith("/"):
            what = f"a relative entry, {entry}" if entry else "an empty entry"
            ignored.append(f"LD_LIBRARY_PATH has {what}, which means another folder in every working directory: left out")
        else:
            folders.append(os.path.realpath(entry) if ".." in entry else entry.rstrip("/") or "/")
    wanted: list[str] = []
    for where, text in (("LD_PRELOAD", environ.get("LD_PRELOAD", "")), (str(preload), _text(preload))):
        for entry in re.split(r"[:\s]+", text):
            if not entry.isprintable() or "$" in entry or ("/" in entry and not entry.startswith("/")):
                ignored.append(f"{where} has {entry!r}, which is another file for each program or working directory: left out")
            elif entry:
                wanted.append(entry)
    return LibPath(tuple(dict.fromkeys(folders)), tuple(dict.fromkeys(wanted)), tuple(dict.fromkeys(ignored)))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
