"""Collect the outputs of a run: regular files with their SHA-256, and everything else by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import sha256_of
from repro_env.schema import redact
from repro_env.schema.run import Output

OUTSIDE = "outside"
"""The name of the directory, in the directory of a run, for files that the run wrote outside its project, by absolute path."""


class Contents(msgspec.Struct, frozen=True):
    outputs: tuple[Output, ...]
    """Sorted by path."""
    others: tuple[str, ...]
    """`<path> -> <target>` or `<path> (why)`, for everything that is not a regular file, cannot be read, or has a name that a
    record cannot hold."""


def collect(files: Path, recorded: Iterable[Output] | None = None) -> Contents:
    """Hash everything below `files` on all cores. A missing directory is empty. An unreadable file does not raise an error.

    `recorded`: the outputs in a record. A file that is not among them, or has a different size, is not read, and its sha256
    is empty.
    """
    outputs: list[tuple[str, int]] = []
    others: list[str] = []
    for path, status in _walk(os.fsencode(files), b""):
        printable = redact.line(path.decode(errors="replace"))
        if isinstance(status, OSError):
            others.append(f"{printable} ({status.strerror})")
        elif stat.S_ISLNK(status.st_mode):
            others.append(f"{printable} -> {redact.line(_target(os.fsencode(files) + b'/' + path))}")
        elif not stat.S_ISREG(status.st_mode):
            others.append(f"{printable} ({_kind(status.st_mode)})")
        elif not _is_recordable(path):
            others.append(f"{printable} (a record cannot hold its name)")
        else:
            outputs.append((path.decode(), status.st_size))
    hashed: list[Output] = []
    if recorded is not None:
        same = {(output.path, output.size) for output in recorded}
        hashed = [Output(path=name, sha256="", size=size) for name, size in outputs if (name, size) not in same]
        outputs = [output for output in outputs if output in same]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = list(pool.map(_hash_file, [files / name for name, _ in outputs]))
    for (name, _), digest in zip(outputs, digests, strict=True):
        if isinstance(digest, OSError):
            others.append(f"{name} ({digest.strerror})")
        else:
            hashed.append(Output(path=name, sha256=f"sha256:{digest[0]}", size=digest[1]))
    return Contents(tuple(sorted(hashed, key=lambda output: output.path)), tuple(sorted(others)))


def of_run(directory: Path, recorded: Iterable[Output] | None = None) -> Contents:
    """Collect the outputs in the directory of a run. Files that it wrote outside its project have absolute paths."""
    internal = collect(directory / "files", recorded)
    recorded = None if recorded is None else [msgspec.structs.replace(output, path=output.path[1:]) for output in recorded]
    external = collect(directory / OUTSIDE, recorded)
    outputs = (*(msgspec.structs.replace(output, path=f"/{output.path}") for output in external.outputs), *internal.outputs)
    return Contents(outputs, (*(f"/{line}" for line in external.others), *internal.others))


def locate(files: Path, path: str) -> Path:
    """Return where the file of an output is. `files`: the directory `files` of the run."""
    return files.with_name(OUTSIDE) / path[1:] if path.startswith("/") else files / path


def name_of(directory: Path, path: Path) -> str:
    """Return the path of an output in the record, from the path of its file. `directory`: the directory of the run."""
    tree, _, name = path.relative_to(directory).as_posix().partition("/")
    return f"/{name}" if tree == OUTSIDE else name


def digest(path: Path) -> str | None:
    """Return `sha256:<hex>` of a regular file, also behind symlinks. None for anything else, such as a pipe or a device."""
    try:
        real = path.resolve(strict=True)
        return f"sha256:{sha256_of(real)}" if real.is_file() else None
    except (OSError, RuntimeError):  # a loop of symlinks raises RuntimeError
        return None


def _walk(root: bytes, prefix: bytes) -> Iterator[tuple[bytes, os.stat_result | OSError]]:
    """Yield the path and status of everything that is not a directory. Paths are bytes because they may not be UTF-8."""
    try:
        with os.scandir(root + b"/" + prefix) as listing:
            items = sorted(listing, key=lambda item: item.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield prefix.rstrip(b"/") or b".", error
        return
    for item in items:
        path = prefix + item.name
        try:
            status = item.stat(follow_symlinks=False)
        except OSError as error:
            yield path, error
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, path + b"/")
        else:
            yield path, status


def _is_recordable(path: bytes) -> bool:
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return False
    return len(text) <= 4000 and not any(character < " " or character == "\x7f" for character in text)


def _target(path: bytes) -> str:
    try:
        return os.readlink(path).decode(errors="replace")  # noqa: PTH115
    except OSError as error:
        return f"? ({error.strerror})"


def _kind(mode: int) -> str:
    names = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"}
    return names.get(stat.S_IFMT(mode), "not a regular file")


def _hash_file(path: Path) -> tuple[str, int] | OSError:
    """Return the sha256 and the current size: a child process that outlived the run may still write to the file."""
    try:
        return sha256_of(path), path.lstat().st_size
    except OSError as error:
        return error
