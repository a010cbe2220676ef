"""The differences that a project accepts: the file `repro-env.ignore`, with one text of `--ignore` per line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from repro_env.compare.outputs.comparison import Accept, File
from repro_env.compare.outputs.ignore import Ignore, parse
from repro_env.io.files import read_regular
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError, os_errors_as

NAME: Final = "repro-env.ignore"
_LARGEST = 4 << 20


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `accept`."""

    path: Path
    added: tuple[Accept, ...]
    """The texts that were written, sorted; none if a file was refused."""
    refused: tuple[str, ...]
    """The files that cannot be accepted by field, each with its reason."""


def project(runs: Path, spec: Path) -> Path:
    """Return the directory of a run's ignore file: the parent of `runs`, or that of the spec if only it has the file."""
    return next((above for above in (runs.parent, spec.parent) if (above / NAME).is_file()), runs.parent)


def accept(project: Path, files: Iterable[File], problem: str) -> Accepted:
    """Write the texts that accept every difference of the results, or nothing if a difference cannot be accepted.

    `problem`: a difference of the runs that is not in a file, or "". Raises as `add`.
    """
    differing = [file for file in files if file.kind == "result" and not file.equal]
    refused = tuple(f"{file.name}: {file.why}" for file in differing if not file.accept)
    refused += (problem,) if problem else ()
    texts = {accept.text: accept for file in reversed(differing) for accept in file.accept}
    added = () if refused else tuple(texts[text] for text in add(project, texts))
    return Accepted(path=project / NAME, added=added, refused=refused)


class Entry(Frozen, frozen=True, kw_only=True):
    """A line of the file that accepts a difference."""

    line: int
    text: str
    note: str
    """The comment on the line above; empty if there is none."""


def entries(project: Path) -> tuple[Entry, ...]:
    """Return the lines of the file without empty lines and comments. Raises `UsageError` if it cannot be read."""
    lines = [line.removesuffix("\r") for line in _read(project / NAME).split("\n")]
    return tuple(
        Entry(line=number, text=text, note=above.lstrip("#").strip() if above.startswith("#") else "")
        for number, (above, text) in enumerate(zip(["", *lines], lines, strict=False), 1)
        if text in _texts(text)
    )


def ignores(project: Path) -> tuple[Ignore, ...]:
    """Return the differences that the project accepts. Raises `UsageError` if its file cannot be read, or has an invalid line."""
    return tuple(parse(text, NAME) for text in _texts(_read(project / NAME)))


def add(project: Path, texts: Iterable[str]) -> tuple[str, ...]:
    """Add texts to the file, and return those that were not in it, sorted. Raises `UsageError` if that is not possible."""
    path = project / NAME
    old = _read(path)
    new = tuple(sorted(set(texts) - set(_texts(old))))
    if new:
        separator = "" if not old or old.endswith("\n") else "\n"
        errors = os_errors_as(UsageError, "the file cannot be written", where=path, hint="give yourself write permission")
        with errors, path.open("a", encoding="utf-8", newline="") as out:
            out.write(separator + "".join(f"{text}\n" for text in new))
    return new


def _texts(content: str) -> list[str]:
    """Return the lines without empty lines and comments."""
    lines = (line.removesuffix("\r") for line in content.split("\n"))
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _read(path: Path) -> str:
    with os_errors_as(UsageError, "the file cannot be read", where=path, hint="make it a readable file"):
        try:
            return read_regular(path, _LARGEST).decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            raise UsageError("the file is not UTF-8", where=str(path), hint="save it as UTF-8") from None
