"""Find configuration files in the home directory that affect libraries.

A run has its own home directory. The files found here are stored in the image below `oci.paths.HOME`, where the library
finds them without any variable. Files that only an interactive session reads (`.pdbrc`, `$PYTHONSTARTUP`) are not on the
list, nor are credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from repro_env.environment.machine import lists
from repro_env.environment.secrets import scanner
from repro_env.io.files import read_regular
from repro_env.schema import redact
from repro_env.schema.environment import Bundled

LARGEST = 1_000_000
"""Maximum bytes of one file."""


class HomeFiles(msgspec.Struct, frozen=True):
    data: dict[str, bytes]
    """By path below a run's home directory."""
    files: tuple[Bundled, ...]
    """Their descriptions, sorted by path."""
    problems: tuple[str, ...]
    """One line for each file that a library reads on this machine but a run will not have."""


def look(installed: AbstractSet[str], environ: Mapping[str, str], *, without: Path) -> HomeFiles:
    """Find the configuration files of these distributions. `without`: the source, whose files are captured with it."""
    data: dict[str, bytes] = {}
    files: list[Bundled] = []
    problems: list[str] = []
    home = Path(environ.get("HOME") or "/nonexistent")
    for configuration in lists.sections("homefiles"):
        library, directories = configuration.name, configuration["directories"].split()
        location = _location(directories, home, environ)
        if location is None or installed.isdisjoint(configuration["distributions"].split()):
            continue
        names = configuration["files"].split()
        for path in _files(location, names):
            name = path.relative_to(location).as_posix() if location.is_dir() else names[0]
            target = str(Path(directories[-1], name))[2:]
            if path.is_relative_to(without) or target in data:
                continue
            content, why = _read(path)
            if redact.line(target) != target:
                why = why or "its name looks like a secret or is not printable"
            if why:
                line = f"{library} reads {path}, which was not captured: {why} (pass it with exec --data {path}:{home / target})"
                problems.append(redact.line(line))
            else:
                data[target] = content
                why = f"{library} reads it in the home directory"
                files.append(Bundled(name=target, version="", why=why, size=len(content)))
    return HomeFiles(data, tuple(sorted(files, key=lambda file: file.name)), tuple(problems))


def _location(directories: list[str], home: Path, environ: Mapping[str, str]) -> Path | None:
    """Return where the library looks on this machine: a directory, or a file that a variable names."""
    for text in directories:
        first, _, path = text.partition("/")
        base = str(home) if first == "~" else environ.get(first[1:], "")
        if base:
            location = Path(base, path)
            return location if location.is_absolute() else None
    return None


def _files(location: Path, names: list[str]) -> list[Path]:
    try:
        if location.is_file():
            return [location]
        return sorted(path for name in names for path in location.glob(name) if path.is_file())
    except OSError:
        return []


def _read(path: Path) -> tuple[bytes, str]:
    """Return the bytes of a file, and why it cannot be captured. Symlinks are followed, since the user made them."""
    try:
        data = read_regular(Path(os.path.realpath(path)), LARGEST)
    except OSError as error:
        return b"", f"it cannot be read: {error.strerror}"
    matches = scanner.in_chunks([data], str(path))
    return (b"", f"line {matches[0][0]} looks like a secret ({matches[0][1]})") if matches else (data, "")
