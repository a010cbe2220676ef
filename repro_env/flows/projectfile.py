"""The user's word in the pyproject.toml of a project: `[tool.repro-env.verify] ignore = [...]`, read and added to."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from repro_env.io.files import atomic_write, read_regular
from repro_env.model.errors import UsageError
from repro_env.verify.compared import File
from repro_env.verify.ignore import Ignore, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME: Final = "pyproject.toml"
TABLE = "[tool.repro-env.verify]"
_LARGEST = 4 << 20
_HEADER = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*repro-env[ \t]*\.[ \t]*verify[ \t]*\][ \t]*(?:#.*)?\r?\n", re.MULTILINE)
_ARRAY = re.compile(r"^[ \t]*ignore[ \t]*=[ \t]*\[", re.MULTILINE)
_ARRAY_END = re.compile(r"^[ \t]*\]", re.MULTILINE)


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the wish to accept all that differs."""

    path: Path
    texts: tuple[str, ...]
    """The texts that were written, sorted; none where anything was refused."""
    refused: tuple[str, ...]
    """What no field can accept, each with its reason."""


def project(runs: Path, spec: Path) -> Path:
    """The directory whose pyproject.toml speaks for a run: above its `runs`, or, where only that has the file, above its spec's."""
    return next((above for above in (runs.parent, spec.parent) if (above / NAME).is_file()), runs.parent)


def accept(project: Path, files: Iterable[File], problem: str) -> Accepted:
    """Write the texts that accept every difference of the results, or none of them where one cannot be accepted.

    `problem`: what makes the runs different whatever their files are; empty for none. Raises as `add`.
    """
    differing = [file for file in files if file.kind == "result" and file.level not in ("bitwise", "equal except for")]
    refused = tuple(f"{file.path or file.now}: {file.why}" for file in differing if not file.accept)
    refused += (problem,) if problem else ()
    texts = () if refused else add(project, (text for file in differing for text in file.accept))
    return Accepted(path=project / NAME, texts=texts, refused=refused)


def ignores(project: Path) -> tuple[Ignore, ...]:
    """What the project's pyproject.toml says may differ; nothing without such a file or table.

    Raises `UsageError` for a file that cannot be read, and for anything in the table but a list of texts.
    """
    return tuple(parse(text, NAME) for text in _texts(_parsed(_read(project), project), project))


def add(project: Path, texts: Iterable[str]) -> tuple[str, ...]:
    """Add texts to the list in the project's pyproject.toml, which is made if missing. Returns those that were not there yet, sorted.

    What the file has stays byte for byte. Raises `UsageError` where the list cannot be added to in that way.
    """
    path = project / NAME
    old = _read(project)
    data = _parsed(old, project)
    there = _texts(data, project)
    new = tuple(sorted(set(texts) - set(there)))
    if not new:
        return ()
    wanted = copy.deepcopy(data)
    wanted.setdefault("tool", {}).setdefault("repro-env", {}).setdefault("verify", {})["ignore"] = [*there, *new]
    for made in _edits(old, new):
        try:
            if tomllib.loads(made) == wanted:
                break
        except tomllib.TOMLDecodeError:
            continue
    else:
        lines = "".join(f"\n      {_quoted(text)}," for text in new)
        raise UsageError(
            f"the list `ignore` of {TABLE} is not written with one text on each line, so nothing was added to it",
            where=str(path),
            hint=f"add these lines to it by hand:{lines}",
        )
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        atomic_write(path, made.encode())
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise UsageError(
            f"the file cannot be written: {error.strerror}", where=str(path), hint="make it writable for you"
        ) from None
    return new


def _edits(old: str, new: tuple[str, ...]) -> Iterator[str]:
    """The ways to add the texts, each correct for one way in which the file may be written."""
    end = "\r\n" if "\r\n" in old else "\n"
    lines = "".join(f"    {_quoted(text)},{end}" for text in new)
    if header := _HEADER.search(old):
        if (array := _ARRAY.search(old, header.end())) and (close := _ARRAY_END.search(old, array.end())):
            yield old[: close.start()] + lines + old[close.start() :]
        yield f"{old[: header.end()]}ignore = [{end}{lines}]{end}{old[header.end() :]}"
    before = "" if not old else end if old.endswith("\n") else end * 2
    yield f"{old}{before}{TABLE}{end}ignore = [{end}{lines}]{end}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _read(project: Path) -> str:
    path = project / NAME
    try:
        return read_regular(path, _LARGEST).decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=str(path), hint="make it a readable file") from None
    except UnicodeDecodeError:
        raise UsageError("the file is not UTF-8, as TOML has to be", where=str(path), hint="save it as UTF-8") from None


def _parsed(text: str, project: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"the file is not valid TOML: {error}", where=str(project / NAME), hint="correct it") from None


def _texts(data: dict[str, Any], project: Path) -> list[str]:
    table: object = data
    for name in ("tool", "repro-env", "verify"):
        table = table.get(name, {}) if isinstance(table, dict) else None
    where = str(project / NAME)
    if not isinstance(table, dict):
        raise UsageError(f"{TABLE} is not a table", where=where, hint=f'write {TABLE}, and below it: ignore = ["*.log"]')
    if unknown := sorted(table.keys() - {"ignore"}):
        raise UsageError(
            f"{TABLE} has an unknown key: {unknown[0]}", where=where, hint="the only key is `ignore`, a list of texts"
        )
    texts = table.get("ignore", [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"`ignore` of {TABLE} is not a list of texts", where=where, hint='for example: ignore = ["*.log"]')
    return texts
