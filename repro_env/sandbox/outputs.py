"""Collect the outputs of a run: regular files with their SHA-256, and everything else by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import sha256_of
from repro_env.schema import redact
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Output
from repro_env.schema.rundirectory import FILES, HOSTS, OUTSIDE

_NAME = lazy(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,4000}")
"""Paths that a record can hold. Bytes that are not UTF-8 are surrogates (PEP 383)."""


class Contents(msgspec.Struct, frozen=True):
    outputs: tuple[Output, ...]
    """Sorted by path."""
    others: tuple[str, ...]
    """`<path> -> <target>` or `<path> (why)`, for everything that is not a regular file, cannot be read, or has a name that a
    record cannot hold."""


def collect(files: Path, prefix: str = "", recorded: Iterable[Output] | None = None) -> Contents:
    """Hash everything below `files` on all cores. A missing directory is empty. An unreadable file does not raise an error.

    `prefix` is put before each path. `recorded`: the outputs in a record. A file that is not among them, or has a different
    size, is not read, and its sha256 is empty.
    """
    sizes = None if recorded is None else {output.path: output.size for output in recorded}
    outputs: list[Output] = []
    names: list[str] = []
    others: list[str] = []
    directories = [""]
    for directory in directories:  # grows
        try:
            with os.scandir(files / directory) as listing:
                items = list(listing)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                others.append(f"{directory.rstrip('/') or '.'} ({error.strerror})")
            continue
        for item in items:
            path = directory + item.name
            if item.is_symlink():
                others.append(f"{path} -> {Path(item.path).readlink()}")
            elif item.is_dir():
                directories.append(path + "/")
            elif not item.is_file():
                others.append(f"{path} (not a regular file)")
            elif not _NAME.fullmatch(path):
                others.append(f"{path} (a record cannot hold its name)")
            elif sizes is not None and (size := _size(item)) != sizes.get(prefix + path):
                outputs.append(Output(path=prefix + path, sha256="", size=size))
            else:
                names.append(path)
    for name, found in zip(names, _hash_files([files / name for name in names]), strict=True):
        if isinstance(found, OSError):
            others.append(f"{name} ({found.strerror})")
        else:
            outputs.append(Output(path=prefix + name, sha256=f"sha256:{found[0]}", size=found[1]))
    lines = sorted(redact.line(prefix + line) for line in others)
    return Contents(tuple(sorted(outputs, key=lambda output: output.path)), tuple(lines))


def of_run(directory: Path, recorded: Iterable[Output] | None = None) -> Contents:
    """Collect the outputs in the directory of a run. Files that it wrote outside its project have absolute paths."""
    external, internal = collect(directory / OUTSIDE, "/", recorded), collect(directory / FILES, "", recorded)
    other_machines = sorted(
        redact.line(f"/{path.relative_to(outside).as_posix()} of {outside.parent.name} (differs from the output with this path)")
        for outside in directory.glob(f"{HOSTS}/*/{OUTSIDE}")
        for path in outside.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )
    return Contents(external.outputs + internal.outputs, (*external.others, *internal.others, *other_machines))


def _size(item: os.DirEntry[str]) -> int:
    """Return the size of a file; 0 for a path that is too long for the kernel."""
    with contextlib.suppress(OSError):
        return item.stat().st_size
    return 0


def _hash_files(paths: Sequence[Path]) -> list[tuple[str, int] | OSError]:
    if len(paths) < 2:
        return list(map(_hash_file, paths))
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_hash_file, paths))


def _hash_file(path: Path) -> tuple[str, int] | OSError:
    """Return the sha256 and the current size: a child process that outlived the run may still write to the file."""
    try:
        return sha256_of(path), path.lstat().st_size
    except OSError as error:
        return error
