"""What a run left behind in its files folder: plain files with their sha256, and all else by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import sha256_of
from repro_env.model import redact
from repro_env.model.run import Output

OUTSIDE = "outside"
"""In a run's folder, beside `files`: what it wrote outside its project, by absolute path."""
_SMALL = 1 << 20
"""Below this many bytes in all, threads cost more than they bring."""


class Left(msgspec.Struct, frozen=True):
    outputs: tuple[Output, ...]
    """Sorted by path."""
    others: tuple[str, ...]
    """`<path> -> <target>`, `<path> (why)`: what is no plain file, cannot be read, or has a name no record can hold."""


def collect(files: Path, recorded: Iterable[Output] | None = None) -> Left:
    """Hash everything below `files`, on all cores. A folder that is not there holds nothing. Never raises for one bad path.

    `recorded`: of a record to compare with. A file that is not in it, or of another size, is not read: its sha256 is empty.
    """
    outputs: list[tuple[str, int]] = []
    others: list[str] = []
    for path, facts in _walk(os.fsencode(files), b""):
        shown = redact.line(path.decode(errors="replace"))
        if isinstance(facts, OSError):
            others.append(f"{shown} ({facts.strerror})")
        elif stat.S_ISLNK(facts.st_mode):
            others.append(f"{shown} -> {redact.line(_target(os.fsencode(files) + b'/' + path))}")
        elif not stat.S_ISREG(facts.st_mode):
            others.append(f"{shown} ({_kind(facts.st_mode)})")
        elif not _holdable(path):
            others.append(f"{shown} (its name has characters that no record holds)")
        else:
            outputs.append((path.decode(), facts.st_size))
    hashed: list[Output] = []
    if recorded is not None:
        same = {(one.path, one.size) for one in recorded}
        hashed = [Output(path=name, sha256="", size=size) for name, size in outputs if (name, size) not in same]
        outputs = [one for one in outputs if one in same]
    digests = _hash([files / name for name, _ in outputs], sum(size for _, size in outputs))
    for (name, _), digest in zip(outputs, digests, strict=True):
        if isinstance(digest, OSError):
            others.append(f"{name} ({digest.strerror})")
        else:
            hashed.append(Output(path=name, sha256=f"sha256:{digest[0]}", size=digest[1]))
    return Left(tuple(sorted(hashed, key=lambda one: one.path)), tuple(sorted(others)))


def of_run(folder: Path, recorded: Iterable[Output] | None = None) -> Left:
    """As `collect`, of a run's `folder`: what it wrote in its project, and by absolute path what it wrote outside."""
    inside = collect(folder / "files", recorded)
    recorded = None if recorded is None else [msgspec.structs.replace(one, path=one.path[1:]) for one in recorded]
    left = collect(folder / OUTSIDE, recorded)
    outputs = (*(msgspec.structs.replace(one, path=f"/{one.path}") for one in left.outputs), *inside.outputs)
    return Left(outputs, (*(f"/{line}" for line in left.others), *inside.others))


def place(files: Path, path: str) -> Path:
    """Where the file of an output is. `files`: of the same run."""
    return files.with_name(OUTSIDE) / path[1:] if path.startswith("/") else files / path


def name_of(folder: Path, path: Path) -> str:
    """The path of an output, by that of its file below a run's `folder`."""
    place, _, name = path.relative_to(folder).as_posix().partition("/")
    return f"/{name}" if place == OUTSIDE else name


def digest(path: Path) -> str | None:
    """`sha256:<hex>` of a plain file, through symlinks; None where there is none. A record may name a pipe or a device: none is opened."""
    try:
        real = path.resolve(strict=True)
        return f"sha256:{sha256_of(real)}" if real.is_file() else None
    except (OSError, RuntimeError):  # the second: symlinks in a circle
        return None


def _walk(root: bytes, below: bytes) -> Iterator[tuple[bytes, os.stat_result | OSError]]:
    """Names as bytes: a script may write what is not UTF-8, and it still was a run."""
    try:
        with os.scandir(root + b"/" + below) as listing:
            items = sorted(listing, key=lambda item: item.name)
    except FileNotFoundError:
        return
    except OSError as error:
        yield below.rstrip(b"/") or b".", error
        return
    for item in items:
        path = below + item.name
        try:
            facts = item.stat(follow_symlinks=False)
        except OSError as error:
            yield path, error
            continue
        if stat.S_ISDIR(facts.st_mode):
            yield from _walk(root, path + b"/")
        else:
            yield path, facts


def _holdable(path: bytes) -> bool:
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
    return names.get(stat.S_IFMT(mode), "no plain file")


def _hash(paths: list[Path], size: int) -> list[tuple[str, int] | OSError]:
    if size < _SMALL or len(paths) < 2:
        return [_one(path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_one, paths))


def _one(path: Path) -> tuple[str, int] | OSError:
    """(sha256, size) of what is there now: a child that outlived the run may still write."""
    try:
        return sha256_of(path), path.lstat().st_size
    except OSError as error:
        return error
